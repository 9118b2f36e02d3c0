"""Starting the server: options, their environment variables, and models that cannot be served."""

import argparse
import socket
import subprocess
import sys
from pathlib import Path

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
    ("variable", "text"),
    [
        *(("PORT", text) for text in ("http", "-1", "65536")),
        *(("PARALLEL", text) for text in ("0", "-2")),
        *(("REQUEST_TIMEOUT", text) for text in ("inf", "-1", "nan")),
        *(("API_KEY", text) for text in ("", "a,,b")),
        *(("THREADS", "-2"), ("CTX_SIZE", "many"), ("DRAIN", "soon"), ("SUPERSEDE", "cookie"), ("TEMP", "-1")),
        *(("TRUSTED_PROXIES", "localhost"), ("ADMIN_API_KEY", "alone"), ("LOG_LEVEL", "chatty"), ("TOP_P", "1.5")),
        *(("MMAP", "perhaps"), ("MODEL", "/nowhere/model.gguf")),
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
    assert status not in (0, None)
    message = f"{status} {capsys.readouterr().err}".lower().replace("_", "-")
    assert variable.lower().replace("_", "-") in message.replace("temperature", "temp")
    assert "traceback" not in message


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
    for arguments, status in ((["--version"], 0), ([], 2)):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == status
    assert capsys.readouterr().out.startswith("pyllmcancel ")
