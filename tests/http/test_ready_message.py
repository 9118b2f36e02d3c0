"""The lines of a server that is ready can be pasted, and do what they say."""

import json
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.pooling import Pooling
from pyllmcancel.server.config import ApiKey, ServerConfig
from pyllmcancel.server.http.listening import close_all, listen
from pyllmcancel.server.running.first_steps import CHAT, TO_TRY, compact, example_of, first_steps, url_from_here
from tests.support.http_process import ServerProcess


def config(**changed: Any) -> ServerConfig:
    return ServerConfig(engine=EngineConfig(), **changed)


@contextmanager
def listening(*hosts: str) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        found: list[socket.socket] = []
        for host in hosts:
            listeners = listen(host, 0)
            stack.callback(close_all, listeners)
            found += listeners
        yield found


@pytest.mark.parametrize(
    "hosts", [("127.0.0.1",), ("0.0.0.0",), ("127.0.0.2", "127.0.0.1"), ("127.0.0.2", "0.0.0.0"), ("::",)]
)
def test_the_address_is_one_that_this_machine_reaches(hosts: tuple[str, ...]) -> None:
    name = "[::1]" if hosts == ("::",) else "127.0.0.1"
    with listening(*hosts) as listeners:
        url = url_from_here(listeners, secure=False)
        assert url == f"http://{name}:{listeners[-1].getsockname()[1]}"


def test_a_key_is_asked_for_and_never_shown_and_the_page_is_named_if_there_is_one() -> None:
    with listening("127.0.0.1") as listeners:
        keyed = config(api_keys=(ApiKey.unnamed("secret"),), ui=False)
        look, ask = first_steps(listeners, keyed, secure=True, example=TO_TRY[None])
        page, _ = first_steps(listeners, config(), secure=False, example=TO_TRY[None])
    assert "secret" not in look + ask
    assert look.startswith("run: pyllmcancel top --url https://127.0.0.1:")
    assert look.endswith("--api-key KEY")
    assert "'Authorization: Bearer KEY'" in ask
    assert "-Nk" in ask
    assert page.startswith("open http://127.0.0.1:")


@pytest.mark.parametrize(
    ("pooling", "has_template", "is_packaged", "path", "field"),
    [
        (None, True, False, "/v1/chat/completions", "messages"),
        (None, True, True, "/v1/completions", "prompt"),
        (None, False, False, "/v1/completions", "prompt"),
        (Pooling.MEAN, False, False, "/v1/embeddings", "input"),
        (Pooling.NONE, False, False, "/embeddings", "input"),
        (Pooling.RANK, False, False, "/v1/rerank", "query"),
    ],
)
def test_a_model_is_asked_for_what_it_makes(
    pooling: Pooling | None, has_template: bool, is_packaged: bool, path: str, field: str
) -> None:
    engine = SimpleNamespace(pooling=pooling, config=EngineConfig(model=None if is_packaged else Path("m.gguf")))
    state: Any = SimpleNamespace(engine=engine, chats=has_template)
    with listening("127.0.0.1") as listeners:
        _, ask = first_steps(listeners, config(), secure=False, example=example_of(state))
    command, _, told = ask.partition("   and interrupt it")
    *_, body, url = shlex.split(command)
    assert urlsplit(url).path == path
    assert field in json.loads(body)
    assert bool(told) == (pooling is None)


def test_the_readme_shows_the_same_body() -> None:
    assert f"'{compact(CHAT)}'" in (Path(__file__).parents[2] / "README.md").read_text("utf-8")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_line_streams_an_answer_and_its_breaking_off_is_in_the_log() -> None:
    with ServerProcess().started() as server:
        line = server.wait_for_log(r"try: (curl .*?)   and interrupt it")[1]
        with subprocess.Popen(shlex.split(line), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as curl:
            assert curl.stdout is not None
            assert curl.stdout.readline().startswith(b"data: ")
            curl.send_signal(signal.SIGINT)
        server.wait_for_log(r"INFO .*request \S+ cancelled \(disconnect\) in decode after .*, stopped in \d+\.\d ms")
