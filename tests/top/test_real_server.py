"""The command beside a real server: what it shows is what the server does."""

from pathlib import Path

from tests.support.http_process import RawClient, ServerProcess
from tests.top.test_command import top


def test_a_cancel_by_a_key_stops_the_computation(tmp_path: Path, long_model: Path) -> None:
    with (
        ServerProcess("--model", str(long_model), "--parallel", "2").started() as server,
        top(server.url, tmp_path) as terminal,
        RawClient(server.port) as client,
    ):
        terminal.until_drawn("slots 0/2")
        asked = client.post(ignore_eos=True, max_tokens=90_000, session_id="mine")
        terminal.until_drawn("session mine")
        terminal.press("j")
        terminal.until_drawn(f"> {asked[:12]}")
        terminal.press("c")
        terminal.until_drawn("compute stopped after ")
        terminal.until_drawn("cancelled: explicit")
        assert server.request(asked)["status"] == "cancelled"
        terminal.press("q")
        assert terminal.wait() == 0
