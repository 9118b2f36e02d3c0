"""`pyllmcancel chat`, on a terminal and without."""

import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from pyllmcancel.cli import main
from pyllmcancel.top.chat import ChatError, answered, is_base
from tests.clients.model import serving
from tests.clients.terminal import Terminal
from tests.support.http_process import until

PIECE = b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n'


def chat(folder: Path, *arguments: str) -> Terminal:
    (folder / "tmp").mkdir(exist_ok=True)
    environment = os.environ | {"TMPDIR": str(folder / "tmp")}
    return Terminal([sys.executable, "-m", "pyllmcancel", "chat", *arguments], environment, folder)


def test_ctrl_c_cancels_the_answer_and_a_second_one_leaves(tmp_path: Path) -> None:
    # without drafts, with which an answer may be over before the key is pressed
    with serving(tmp_path, "--spec-type", "none") as server, chat(tmp_path, server.url) as mine:
        mine.until_drawn("\n>")
        mine.press("tell me a story\n")
        until(lambda: server.log, lambda log: " added, owner" in log)
        mine.signal(signal.SIGINT)
        mine.until_drawn("cancelled")
        until(lambda: server.log, lambda log: "cancelled (disconnect)" in log)
        mine.signal(signal.SIGINT)
        assert mine.wait() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_the_server_of_a_chat_ends_with_it_however_it_ends() -> None:
    with TemporaryDirectory(prefix="chat-") as folder:  # a socket's path is short
        place = Path(folder)
        with chat(place, "stdlib-coder") as mine:
            mine.until_drawn("\n>")
            (server,) = mine.children()
            mine.press("\x04")
            assert mine.wait() == 0
        assert not Path(f"/proc/{server}").exists()
        assert not any((place / "tmp").iterdir())
        with chat(place, "stdlib-coder") as mine:
            mine.until_drawn("\n>")
            (server,) = mine.children()
            mine.signal(signal.SIGKILL)
            until(Path(f"/proc/{server}").exists, lambda there: not there)


def test_a_model_that_cannot_be_loaded_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["chat", str(tmp_path / "none.gguf")]) == 1
    assert "there is no file" in capsys.readouterr().err
    assert main(["chat", "http://127.0.0.1:9"]) == 1
    assert "connection refused" in capsys.readouterr().err


def answering(status: int, **content: Any) -> httpx.Client:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, **content))
    return httpx.Client(transport=transport, base_url="http://here")


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, PIECE, "not complete"),
        (200, PIECE + b'data: {"error": {"message": "superseded"}}\n\n', "superseded"),
        (400, b'{"error": {"message": "too long"}}', "too long"),
    ],
)
def test_an_answer_that_was_cut_is_not_taken_for_a_whole_one(status: int, body: bytes, why: str) -> None:
    with answering(status, content=body) as client, pytest.raises(ChatError, match=why):
        list(answered(client, []))


@pytest.mark.parametrize(("props", "base"), [({"chats": False}, True), ({"chats": True}, False), ({}, False)])
def test_a_base_model_is_recognised(props: dict[str, bool], base: bool) -> None:
    with answering(200, json=props) as client:
        assert is_base(client) is base


def test_text_of_a_whole_answer() -> None:
    with answering(200, content=PIECE + b"data: [DONE]\n\n") as client:
        assert list(answered(client, [])) == ["Hi"]
