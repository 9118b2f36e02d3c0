"""The options of AIPerf, and the figures that are read from its files."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from bench.side_by_side.aiperf import RUNS, arguments, outcomes, summarise
from bench.side_by_side.aiperf_tokenizer import UnsuitableVocabularyError, write_tokenizer
from pyllmcancel.models import packaged_model_path


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
