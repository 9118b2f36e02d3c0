"""bench.builds: builds take turns, and the table has the fastest runs and shares of the first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import builds
from bench.builds import Build, table


def with_runs(text: str, *factors: float) -> Build:
    build = Build(text)
    for factor in factors:
        build.runs.append({f"{part} {n}": factor * n * 100 for part in builds.PARTS for n in builds.CLIENTS})
    return build


def test_the_table_has_the_fastest_runs_and_shares_of_the_first_build() -> None:
    lines = table(
        [with_runs("native=/a/python", 1, 3, 2), with_runs("wheel=haswell@/b/python", 1.5, 2.85, 1)]
    ).splitlines()
    assert lines[0] == "| | native | wheel |"
    assert lines[2] == "| prompt 1 | 300 | 285 (0.95) |"
    assert lines[-1] == "| decode 8 | 2400 | 2280 (0.95) |"


def test_a_build_is_measured_by_its_own_python_with_its_back_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "measure.py"
    script.write_text(
        "import json, os\nprint(json.dumps({'cpu': os.environ['PYLLMCANCEL_CPU_VARIANT'], 'speeds': {}}))\n"
    )
    monkeypatch.setattr(builds, "__file__", str(script))
    build = Build(f"wheel=haswell@{sys.executable}")
    assert build.run([]) == "haswell"
    assert build.runs == [{}]


def test_the_packaged_model_is_measured() -> None:
    from pyllmcancel.models import packaged_model_path

    found = builds.measure(packaged_model_path())
    assert set(found["speeds"]) == {f"{part} {n}" for part in builds.PARTS for n in builds.CLIENTS}
    assert all(speed > 0 for speed in found["speeds"].values())
