"""The sweep on a dozen and more architectures, of each memory kind several; all of llama.cpp's are one command."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from pyllmcancel._native import Context, Model
from pyllmcancel.errors import ContextError
from tests.architectures.sweep import Report, sweep
from tests.support.device import FEWER, IS_UNSOUND
from tests.support.marks import mostly_long
from tests.support.toy_models import descriptions, write_toy

REFUSED = "dream-dense"
DESCRIBED = [name for name in descriptions() if name != REFUSED and not (IS_UNSOUND and name.endswith("-moe"))]
TINY = {"mamba-tiny": "recurrent", "jamba-tiny": "hybrid"}  # with smaller states than llama.cpp's toys of them
SWEPT = [*DESCRIBED, *TINY]
CHUNK = 12  # half as long as in the whole sweep, and still enough to leave the windows of 32 tokens behind

ReportOf = Callable[[str], Report]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory, model_files: dict[str, Path]) -> Callable[[str], Path]:
    folder, written = tmp_path_factory.mktemp("toys"), {name: model_files[kind] for name, kind in TINY.items()}

    def write(name: str) -> Path:
        if name not in written:
            written[name] = write_toy(folder / f"{name}.gguf", name)
        return written[name]

    return write


@pytest.fixture(scope="module")
def report_of(toy: Callable[[str], Path]) -> ReportOf:
    reports: dict[str, Report] = {}

    def report(name: str) -> Report:
        if name not in reports:
            reports[name] = sweep(toy(name), stride=FEWER, chunk=CHUNK)
        return reports[name]

    return report


@pytest.mark.parametrize("name", mostly_long(SWEPT, "llama-dense"))
def test_a_cancel_at_any_node_disturbs_no_neighbour(report_of: ReportOf, name: str) -> None:
    report = report_of(name)
    assert report.findings == []
    assert report.points > 50 / FEWER


@pytest.mark.parametrize("name", mostly_long(SWEPT, "llama-dense"))
def test_the_sweep_stops_steps_in_the_middle(report_of: ReportOf, name: str) -> None:
    """Every time where an abort is harmless to the neighbours; otherwise when the victim is alone in the step."""
    report = report_of(name)
    if report.memory_kind == "attention":
        assert report.aborted == report.points
    else:
        assert report.points / 3 < report.aborted < report.points


@pytest.mark.long
def test_all_kinds_of_memory_are_swept(report_of: ReportOf) -> None:
    by_kind = defaultdict[str, int](int)
    for report in map(report_of, SWEPT):
        by_kind[report.memory_kind] += 1
        by_kind["window"] += report.memory_kind == "attention" and report.window > 0
        by_kind["experts"] += report.experts
    at_least = {"attention": 6, "window": 2, "experts": 0 if IS_UNSOUND else 3, "recurrent": 2, "hybrid": 3}
    assert {kind: by_kind[kind] for kind, n_models in at_least.items() if by_kind[kind] < n_models} == {}


@pytest.mark.long
@pytest.mark.parametrize("name", ["mamba2-dense", "jamba-tiny", "granitehybrid-dense"])
def test_without_the_rules_for_its_memory_kind_others_are_disturbed(toy: Callable[[str], Path], name: str) -> None:
    assert sweep(toy(name), protected=False, stride=9 * FEWER, chunk=CHUNK).wrong > 0


def test_a_diffusion_model_is_refused_and_told_why(toy: Callable[[str], Path]) -> None:
    model = Model.load(toy(REFUSED), require_vocabulary=False)
    with pytest.raises(ContextError, match="does not generate token by token"):
        Context(model, n_ctx=256, n_seq_max=1, n_batch=32, n_threads=1)
