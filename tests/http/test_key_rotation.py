"""SIGHUP: the file of keys is read again, and nothing else changes."""

import signal
from pathlib import Path

import pytest

from pyllmcancel.server.config import ApiKey
from pyllmcancel.server.running.key_rotation import read_again
from tests.support.http_process import ServerProcess
from tests.support.http_world import open_world

Keys = tuple[tuple[ApiKey, ...], tuple[str, ...]]
OLD, NEW, OTHER = ApiKey("ann", "old"), ApiKey("ann", "new"), ApiKey("bob", "bob's")


async def test_new_keys_are_valid_and_a_removed_one_is_not() -> None:
    async with open_world(api_keys=(OLD,)) as world:
        for keys, valid in (((OLD, NEW), {"old": 200, "new": 200}), ((NEW,), {"old": 401, "new": 200})):
            read_again(world.app.state.server.keys, lambda keys=keys: (keys, ()))  # type: ignore[misc]
            for key, status in valid.items():
                assert (await world.get("/v1/models", headers={"x-api-key": key})).status == status


@pytest.mark.parametrize("keys", [(OLD, OTHER), (OTHER,), None], ids=["several-owners", "another-owner", "no-file"])
async def test_what_cannot_be_changed_leaves_the_keys_as_they_were(
    keys: tuple[ApiKey, ...] | None, caplog: pytest.LogCaptureFixture
) -> None:
    def read() -> Keys:
        if keys is None:
            raise FileNotFoundError(2, "No such file or directory", "/keys")
        return keys, ()

    async with open_world(api_keys=(OLD,)) as world:
        read_again(world.app.state.server.keys, read)
        assert (await world.get("/v1/models", headers={"x-api-key": "old"})).status == 200
        assert (await world.get("/v1/models", headers={"x-api-key": "bob's"})).status == 401
        assert "the former ones stay valid" in caplog.text


HANGS_UP_WHILE_IT_STARTS = """
import signal, sys
from pathlib import Path
from pyllmcancel.cli import main, opening

listen = opening.listen

def listen_later(*where):
    Path(sys.argv[sys.argv.index("--api-key-file") + 1]).write_text("ann:new\\n")
    signal.raise_signal(signal.SIGHUP)
    return listen(*where)

opening.listen = listen_later
sys.exit(main())
"""


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")
def test_a_hangup_has_the_keys_read_again_also_while_the_server_starts(long_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("ann:old\n")
    options = ("--model", str(long_model), "--api-key-file", str(file))
    with ServerProcess(*options, program=HANGS_UP_WHILE_IT_STARTS) as process:
        server = process.started()
        server.wait_for_log("1 API keys of 1 owners are valid")
        for key, status in {"old": 401, "new": 200}.items():
            assert server.http.get("/v1/models", headers={"X-Api-Key": key}).status_code == status
        server.http.headers["Authorization"] = "Bearer new"
        body = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            file.write_text("ann:newer\nann:newest\n")
            server.signal(signal.SIGHUP)
            server.wait_for_log("2 API keys of 1 owners are valid")
            assert "data: [DONE]" in lines, "no request is disturbed"
        assert server.http.get("/v1/models").status_code == 401
        server.http.headers["Authorization"] = "Bearer newest"
        assert server.http.get("/v1/models").status_code == 200
