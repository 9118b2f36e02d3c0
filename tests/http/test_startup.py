"""Starting the server: options, their environment variables, and models that cannot be served."""

import argparse
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.cli import main, serve
from tests.support import broken_models
from tests.support.http_process import ServerProcess


def serve_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pyllmcancel", exit_on_error=False)
    serve.add_parser(parser.add_subparsers(dest="command"))
    return parser


def serve_actions() -> list[argparse.Action]:
    (commands,) = (action for action in serve_parser()._actions if isinstance(action.choices, dict))
    actions = commands.choices["serve"]._actions  # type: ignore[index]
    return [
        action for action in actions if argparse.SUPPRESS not in (action.help, action.dest) and action.option_strings
    ]


def test_help_explains_every_option_and_names_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help-all"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for action in serve_actions():
        option = action.option_strings[0]
        assert option in text
        if option != "--fit-print":  # it prints and exits: in the environment it would keep servers from serving
            assert f"(env: PYLLMCANCEL_{option.removeprefix('--').upper().replace('-', '_')})" in text, option
        assert action.help is not None
        assert not action.help.startswith(" ")


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("MODEL", "/x/y.gguf", "model", Path("/x/y.gguf")),
        ("ALIAS", "name", "alias", "name"),
        ("CTX_SIZE", "4096", "ctx_size", 4096),
        ("MMAP", "off", "mmap", False),
        ("MLOCK", "YES", "mlock", True),
        ("REQUEST_TIMEOUT", "1.5", "request_timeout", 1.5),
        ("SUPERSEDE", "client-ip", "supersede", "client-ip"),
        ("TEMP", "0.1", "temp", 0.1),
        ("DRAIN", "0", "drain", 0.0),
    ],
)
def test_an_option_from_the_environment_and_the_command_line_wins(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, name: str, value: Any
) -> None:
    assert getattr(serve_parser().parse_args(["serve"]), name) != value
    monkeypatch.setenv(f"PYLLMCANCEL_{variable}", text)
    assert getattr(serve_parser().parse_args(["serve"]), name) == value
    option = "--" + variable.lower().replace("_", "-")
    given = [option] if isinstance(value, bool) else [option, str(value)]
    monkeypatch.setenv(f"PYLLMCANCEL_{variable}", "off" if isinstance(value, bool) else text)
    parsed = getattr(serve_parser().parse_args(["serve", *given]), name)
    assert parsed == (True if isinstance(value, bool) else value)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PORT", "http"),
        ("PORT", "-1"),
        ("PORT", "65536"),
        ("PARALLEL", "0"),
        ("THREADS", "-2"),
        ("PARALLEL", "-2"),
        ("CTX_SIZE", "many"),
        ("REQUEST_TIMEOUT", "inf"),
        ("REQUEST_TIMEOUT", "-1"),
        ("REQUEST_TIMEOUT", "nan"),
        ("DRAIN", "soon"),
        ("SUPERSEDE", "cookie"),
        ("TRUSTED_PROXIES", "localhost"),
        ("API_KEY", ""),
        ("API_KEY", "a,,b"),
        ("ADMIN_API_KEY", "alone"),
        ("LOG_LEVEL", "chatty"),
        ("MMAP", "perhaps"),
        ("TOP_P", "1.5"),
        ("TEMP", "-1"),
        ("MODEL", "/nowhere/model.gguf"),
    ],
)
def test_a_bad_value_ends_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, text: str
) -> None:
    monkeypatch.setenv(f"PYLLMCANCEL_{variable}", text)
    try:
        status: object = main(["serve"])
    except SystemExit as ended:
        status = ended.code
        message = status if isinstance(status, str) else ""
    else:
        message = ""
    assert status not in (0, None)
    message += capsys.readouterr().err
    assert variable.lower().replace("_", "-") in message.lower().replace("_", "-").replace("temperature", "temp")
    assert "Traceback" not in message


def test_options_reach_the_server(long_model: Path) -> None:
    environment = {
        "PYLLMCANCEL_MODEL": str(long_model),
        "PYLLMCANCEL_ALIAS": "from the environment",
        "PYLLMCANCEL_API_KEY": "secret",
        "PYLLMCANCEL_CTX_SIZE": "512",
        "PYLLMCANCEL_REQUEST_TIMEOUT": "0.05",
        "PYLLMCANCEL_SUPERSEDE": "user",
    }
    with ServerProcess("--alias", "from the command line", environment=environment) as server:
        server.started()
        assert server.http.get("/v1/models").status_code == 401
        server.http.headers["Authorization"] = "Bearer secret"
        (model,) = server.http.get("/v1/models").json()["data"]
        assert (model["id"], model["meta"]["n_ctx"]) == ("from the command line", 512)
        body = {"prompt": "x" * 400, "user": "me", "max_tokens": 100, "timeout": 0.001}
        assert server.http.post("/v1/completions", json=body).status_code == 504
        assert server.http.get("/v1/requests").json()["data"][0]["supersede"] == " user me completion"
        assert "secret" not in server.log


WHILE_SERVING = """
import asyncio, gc, sys, time, httpx, uvicorn
from pyllmcancel.cli import main

def use(port):
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
        while http.get("/health").status_code != 200:
            time.sleep(0.01)
        http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).raise_for_status()

async def main_loop(server):
    await asyncio.to_thread(use, server.servers[0].sockets[0].getsockname()[1])
    gc.collect()
    print(gc.get_freeze_count(), len(gc.get_objects()))

uvicorn.Server.main_loop = main_loop
status = main(["serve", "--model", sys.argv[1], "--port", "0"])
print(gc.get_freeze_count())
sys.exit(status)
"""


@pytest.mark.long
def test_a_full_collection_while_serving_does_not_walk_over_what_was_imported(long_model: Path) -> None:
    command = [sys.executable, "-P", "-c", WHILE_SERVING, str(long_model)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    n_frozen, n_collected, n_frozen_afterwards = map(int, done.stdout.split())
    assert n_frozen > 5 * n_collected, "it would hold the GIL for so long that nothing could be cancelled"
    assert n_frozen_afterwards == 0, "the model is not freed at the exit"


def test_a_model_that_cannot_be_loaded_ends_the_process(tmp_path: Path) -> None:
    path = broken_models.write_cut_header(tmp_path / "cut.gguf")
    with ServerProcess("--model", str(path)) as server:
        assert server.wait() == 1
        assert server.log.count("the model could not be loaded") == 1
        assert f"the model could not be loaded: {path}" in server.log.splitlines()[-1]
        assert "Traceback" not in server.log


def test_a_port_that_is_taken_ends_the_process_and_says_so_before_anything_is_loaded(long_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with ServerProcess("--model", str(long_model), "--port", port) as server:
            assert server.wait() == 1
            said = f"pyllmcancel: cannot listen on 127.0.0.1:{port}: address already in use"
            assert server.log == f"{said}; --port chooses another port\n"


def test_version_and_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("pyllmcancel ")
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
