"""The command against a real server, and what it says when it cannot run."""

import builtins
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.cli import main
from tests.support.http_process import ServerProcess, until


@pytest.mark.long
def test_it_measures_a_real_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ServerProcess("--parallel", "2").started() as server:
        load = ["--requests", "8", "--percent", "50", "--delay", "0", "--concurrency", "1", "--seed", "1"]
        lengths = ["--prompt-tokens", "24", "--output-tokens", "8"]
        command = ["bench", "cancel", "--url", server.url, "--pid", str(server.pid)]
        assert main([*command, *load, *lengths, "--json", str(tmp_path / "found.json")]) == 0
    document = json.loads((tmp_path / "found.json").read_text())
    found = document["summary"]
    assert 0 < found["cancelled"] == found["hung_up"] == found["chosen"] < 8
    assert (found["ok"], found["errors_by_kind"]) == (8 - found["cancelled"], {})
    assert found["good_tokens"] == found["ok"] * 8
    assert document["prompts_counted_by"] == "usage"
    assert found["cpu_s"] > 0
    assert found["cancel_latency_ms"]["n"] == found["cancelled"]
    assert "hang-up to rest, ms" in capsys.readouterr().out


def test_sigterm_shows_and_writes_what_was_measured_until_then(tmp_path: Path) -> None:
    into = tmp_path / "found.json"
    with ServerProcess("--n-predict", "4") as server:
        url = server.started().url
        command = [sys.executable, "-m", "pyllmcancel", "bench", "cancel", "--url", url, "--requests", "400"]
        with subprocess.Popen([*command, "--prompt-tokens", "8", "--json", into], stdout=subprocess.PIPE) as bench:
            until(lambda: server.log.count("finished ("), lambda count: count > 20)
            bench.terminate()
            shown, _ = bench.communicate()
    assert bench.returncode == 0
    assert b"first token" in shown
    assert json.loads(into.read_text())["exchanges"]


@pytest.mark.parametrize(
    ("url", "why"),
    [("http://127.0.0.1:9", "connect_failed"), ("localhost:8000", "not a http:// or https:// URL")],
)
def test_a_server_that_cannot_be_asked_is_told_in_a_line(
    url: str, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYLLMCANCEL_BENCH_URL", url)
    assert main(["bench", "cancel"]) == 1
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("pyllmcancel: ")
    assert why in line


def test_a_missing_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def importing(name: str, *args: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "rich":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found(name, *args, **more)

    monkeypatch.delitem(sys.modules, "pyllmcancel.bench.command", raising=False)
    monkeypatch.delattr("pyllmcancel.bench.command", raising=False)
    monkeypatch.setattr(builtins, "__import__", importing)
    assert main(["bench", "cancel", "--url", "http://127.0.0.1:9"]) == 2
    assert "rich is missing: pip install 'pyllmcancel[bench]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--percent", "101"], ["--percent", "ten"], ["--delay", "2..1"], ["--requests", "0"]], ids=" ".join
)
def test_a_bad_option_is_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "cancel", *options])
    assert ended.value.code == 2
    assert options[0] in capsys.readouterr().err
