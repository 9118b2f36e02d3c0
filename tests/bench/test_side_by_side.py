"""The side-by-side runs: who has a turn when, what is kept, and figures from what was seen."""

import argparse
import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from bench.peers import PEERS, NotAvailableError, Settings
from bench.peers.running import TimedLog
from bench.side_by_side.__main__ import carry_out
from bench.side_by_side.aiperf import RUNS, arguments, outcomes, summarise
from bench.side_by_side.aiperf_tokenizer import UnsuitableVocabularyError, write_tokenizer
from bench.side_by_side.cancel_in_company import steps_of
from bench.side_by_side.conditions import CpuTimes, cpu_times, stolen_percent
from bench.side_by_side.load import batch_figures, speed_figures
from bench.side_by_side.measurement import Figures, Measurement
from bench.side_by_side.parts import OtherRunError, Part, PartStore, describe_run, read_parts, schedule
from pyllmcancel.bench.client import Ask, Exchange, Outcome
from pyllmcancel.models import packaged_model_path


async def nothing(_: Any) -> Figures:
    return {}


MEASUREMENT = Measurement(name="some", rounds=3, measure=nothing, others={"tool": nothing})


def test_in_each_round_another_peer_comes_first() -> None:
    turns = [(part.round, part.peer) for part in schedule([MEASUREMENT], ["a", "b"])]
    assert turns == [
        *((1, "a"), (1, "b"), (1, "tool")),
        *((2, "b"), (2, "tool"), (2, "a")),
        *((3, "tool"), (3, "a"), (3, "b")),
    ]


def test_a_measured_part_is_kept_and_one_that_could_not_be_measured_is_tried_again(tmp_path: Path) -> None:
    store, part = PartStore(tmp_path), Part(MEASUREMENT, "a", 1)
    store.keep(part, {"began": "2026-01-01", "not_measured": "it is not here"})
    assert not store.has(part)
    store.keep(part, {"began": "2026-01-01", "figures": {"seconds": 1.5}})
    assert store.has(part)
    assert read_parts(tmp_path)[-1]["figures"] == {"seconds": 1.5}


def described(**changed: Any) -> dict[str, Any]:
    common = {"model": "m", "model_mib": 1.0, "threads": 2, "effort": 1.0, "machine": {"cores": 2}, "peers": {}}
    return common | {"commands": ["first"]} | changed


def test_a_resumed_run_remembers_all_its_commands(tmp_path: Path) -> None:
    for command in ("first", "second", "first"):
        describe_run(tmp_path, described(commands=[command]))
    assert json.loads((tmp_path / "run.json").read_text())["commands"] == ["first", "second"]


def test_runs_under_other_conditions_are_not_mixed(tmp_path: Path) -> None:
    describe_run(tmp_path, described())
    with pytest.raises(OtherRunError, match="another threads"):
        describe_run(tmp_path, described(threads=1))


def exchange(outcome: Outcome, token_at: list[float], *, tokens: int | None = None) -> Exchange:
    asked = Ask(prompt="p", max_tokens=4, request_id="r")
    return Exchange(asked, began_at=0.0, sent_at=1.0, token_at=token_at, outcome=outcome, completion_tokens=tokens)


OK, ERROR = Outcome.OK, Outcome.ERROR


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (  # complete answers count alone
            [exchange(OK, [2.0, 2.5, 3.0], tokens=3), exchange(Outcome.CANCELLED, [2.0, 2.1]), exchange(ERROR, [])],
            {"requests": 3, "errors": 1, "tokens": 3, "ttft": [1.0], "itl": [0.5, 0.5], "tpot": [0.5]},
        ),
        (  # itl is each gap, and tpot an answer's mean
            [exchange(OK, [2.0, 2.5, 4.0]), exchange(OK, [3.0, 3.25], tokens=2)],
            {"itl": [0.5, 1.5, 0.25], "tpot": [1.0, 0.25]},
        ),
        # Tokens in one event have no gap, but still count for the pace.
        ([exchange(OK, [2.0, 4.0], tokens=5)], {"itl": [2.0, 0.0, 0.0, 0.0], "tpot": [0.5]}),
        # An answer that came whole, or of one token, has no gaps.
        *(
            ([exchange(OK, token_at, tokens=n)], {"itl": [], "tpot": []})
            for token_at, n in (([], 0), ([], 5), ([2.0], 1))
        ),
    ],
)
def test_figures_of_speed(seen: list[Exchange], expected: dict[str, Any]) -> None:
    figures = speed_figures(seen, seconds=6.0)
    assert figures["tokens_per_second"] == pytest.approx(figures["tokens"] / 6.0)
    found = {name: sorted(figures[name]) if name == "itl" else figures[name] for name in expected}
    assert found == {name: sorted(value) if name == "itl" else value for name, value in expected.items()}


def test_a_batch_is_paced_by_its_answers_tokens() -> None:
    figures = batch_figures({"pl": 4, "tg": 40, "t": 8.0, "t_tg": 5.0})
    assert figures == {"tokens_per_second": 20.0, "decode_per_second": 32.0, "seconds": 8.0}


def test_the_steps_of_one_request_are_found_among_others() -> None:
    mine, other = {"request": "mine", "n_tokens": 1}, {"request": "other", "n_tokens": 7}
    steps = [
        {"started_at": 10.0, "seconds": 0.5, "sequences": [mine, other]},
        {"started_at": 10.5, "seconds": 0.5, "sequences": [other]},
    ]
    assert steps_of(steps, "mine") == [(10.0, 10.5, 1)]


def test_stolen_time_is_a_share_of_what_was_wanted() -> None:
    assert stolen_percent(CpuTimes(1000, 50), CpuTimes(1060, 90)) == 40.0
    assert stolen_percent(CpuTimes(1000, 50), CpuTimes(1000, 50)) == 0.0
    assert cpu_times().used > 0


@pytest.mark.parametrize(
    ("stolen", "kept"), [([30.0, 20.0, 5.0, 0.0], 2), ([30.0, 20.0, 50.0, 40.0], 1)], ids=["until it is quiet", "never"]
)
def test_a_part_is_measured_again_while_others_take_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stolen: list[float], kept: int
) -> None:
    attempts = [
        {"figures": {"n": n}, "stolen_percent": percent, "seconds": 1.0, "began": ""}
        for n, percent in enumerate(stolen)
    ]
    remaining = iter(attempts)
    monkeypatch.setattr(f"{carry_out.__module__}.measured", lambda *_: next(remaining))
    assert carry_out(Part(MEASUREMENT, "a", 1), PartStore(tmp_path), argparse.Namespace(max_steal=10.0))
    assert [found["figures"] for found in read_parts(tmp_path)] == [{"n": kept}]


# -- servers -----------------------------------------------------------------------------------------------------------


SETTINGS = Settings(model=Path("/models/m.gguf"), port=8123, threads=2, parallel=4, ctx_size=8192)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that passes for every peer: it says yes to what is asked of a Python."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho True\n")
    program.chmod(0o755)
    for variable in ("LLAMA_SERVER", "PEERS_PYTHON"):
        monkeypatch.setenv(variable, str(program))
    return program


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", PEERS)
def test_every_peer_is_told_the_model_the_port_and_the_threads(name: str) -> None:
    command = " ".join(PEERS[name].command(SETTINGS))
    assert "/models/m.gguf" in command
    assert "8123" in command
    assert "127.0.0.1" in command
    assert "threads 2" in command


def test_a_missing_program_is_reported_with_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_SERVER", str(tmp_path / "nowhere"))
    with pytest.raises(NotAvailableError, match=r"nowhere; LLAMA_SERVER names another place"):
        PEERS["llama-server"].command(SETTINGS)


def test_our_log_tells_when_a_client_has_left() -> None:
    words = PEERS["pyllmcancel"].left
    assert words.search("pyllmcancel.engine: request r-1 cancelled (disconnect) in waiting: 5 prompt tokens")
    assert not words.search("pyllmcancel.engine: request r-1 cancelled (explicit) in prefill: 5 prompt tokens")


def test_the_log_of_llama_server_tells_what_was_computed() -> None:
    words = PEERS["llama-server"].released
    found = words.search("I slot      release: id  1 | task 0 | stop processing: n_tokens = 12, truncated = 0")
    assert found["n_tokens"] == "12"


def test_a_log_is_read_as_it_comes(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb", buffering=0) as server:
        heard: list[str] = []
        log = TimedLog(pipe, tmp_path / "copy.log", lambda line, _: heard.append(line))
        server.write(b"first\nnumber 1\nnumber 2\n")
        found = log.wait_for(re.compile(r"number (\d)"), since=0.0, seconds=30.0, count=2)
        server.close()
        assert [match[1] for _, match in found] == ["1", "2"]
        assert log.wait_for(re.compile("number 3"), since=0.0, seconds=30.0) == []
        log.join()
    assert heard == ["first", "number 1", "number 2"]
    assert (tmp_path / "copy.log").read_text() == "first\nnumber 1\nnumber 2\n"


# -- AIPerf ------------------------------------------------------------------------------------------------------------


def row(*, cancelled: bool = False, error: dict[str, Any] | None = None, phase: str = "profiling") -> dict[str, Any]:
    return {"metadata": {"benchmark_phase": phase, "was_cancelled": cancelled}, "error": error, "metrics": {}}


CUT = row(cancelled=True, error={"code": 499, "type": "RequestCancellationError"})
LOST = row(error={"code": None, "type": "ServerDisconnectedError"})


def options(name: str) -> dict[str, str]:
    (run,) = [run for run in RUNS if run.name == name]
    words = arguments(run, url="http://h:1", model="m", tokenizer=Path("/t"), out=Path("/o"))
    return dict(itertools.pairwise(words))


def test_a_request_that_aiperf_cut_is_no_error() -> None:
    found = outcomes([row(), row(), CUT, LOST])
    assert (found["requests"], found["ok"], found["cancelled"], found["errors"]) == (4, 2, 1, 1)
    assert found["error_kinds"] == {"ServerDisconnectedError": 1}


def test_warm_up_is_not_among_the_requests() -> None:
    lost_in_warmup = row(error={"code": 500, "type": "Internal"}, phase="warmup")
    found = outcomes([row(), lost_in_warmup, row(phase="warmup")])
    assert (found["requests"], found["ok"], found["errors"], found["warmup_errors"]) == (1, 1, 0, 1)


def test_a_summary_is_read_from_the_files_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "profile_export.jsonl").write_text("\n".join(json.dumps(entry) for entry in (row(), CUT)))
    (tmp_path / "profile_export_aiperf.json").write_text(json.dumps({"output_token_throughput": {"avg": 31.5}}))
    found = summarise(tmp_path)
    assert (found["ok"], found["cancelled"]) == (1, 1)
    assert found["tokens_per_second"] == 31.5
    assert found["ttft_p50_ms"] is None


def test_the_tokenizer_is_the_models_own(tmp_path: Path) -> None:
    folder = write_tokenizer(packaged_model_path(), tmp_path / "tokenizer")
    written = json.loads((folder / "tokenizer.json").read_text())
    assert len(written["model"]["vocab"]) == 4096
    assert written["model"]["merges"][0] == "Ġ Ġ"
    assert json.loads((folder / "tokenizer_config.json").read_text())["eos_token"] in written["model"]["vocab"]


def test_a_vocabulary_of_another_kind_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    writer = GGUFWriter(model, "llama")
    writer.add_tokenizer_model("llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsuitableVocabularyError, match=r"m\.gguf"):
        write_tokenizer(model, tmp_path / "tokenizer")
