"""Sweep every toy model of a folder, and tell what came of it by memory kind.

    python tools/make_toy_models.py build/toys
    python -m tests.architectures build/toys --jobs 2 --results build/sweep.jsonl --report docs/measured/abort-sweep.md
    python -m tests.architectures build/toys --jobs 2 --cuts --stride 5 --report docs/measured/cut-sweep.md

With ``--results`` a sweep that was broken off goes on where it was. Exits with 1 if a protected sweep finds a neighbour
disturbed, or if a model ended its process.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.architectures.results import Result, ResultFile, Way
from tests.architectures.table import UNPROTECTED_STRIDE, page

CRASHED = "the process ended with status"


def sweep_in_a_process(path: Path, way: Way) -> Result:
    command = [sys.executable, "-m", "tests.architectures.one", str(path), *way.options()]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode > 0:
        raise RuntimeError(f"{' '.join(command)}: exit status {done.returncode}")
    # Below zero it is a signal: llama.cpp ends a process by abort().
    found = json.loads(done.stdout) if done.returncode == 0 else {"refused": f"{CRASHED} {done.returncode}"}
    return Result.of(path.stem, way, found)


def sweep_all(models: Iterable[Path], file: ResultFile, way: Way, jobs: int) -> list[Result]:
    """Results in the order of `models`: those of the file, and the missing ones."""
    results = {path: file.get(path.stem, way) for path in models}
    missing = [path for path, result in results.items() if result is None]
    with ThreadPoolExecutor(jobs) as pool:
        sweeps = {pool.submit(sweep_in_a_process, path, way): path for path in missing}
        for number, sweep in enumerate(as_completed(sweeps), 1):
            result = sweep.result()
            file.add(result)
            results[sweeps[sweep]] = result
            sys.stderr.write(f"[{number}/{len(missing)}] {described(result)}\n")
    return [result for result in results.values() if result is not None]


def described(result: Result) -> str:
    report = result.report
    if report is None:
        return f"{result.model}: refused, {result.refused}"
    return (
        f"{report.model}: {report.memory_kind}, {report.points} cancels, {report.aborted} stopped, "
        f"{report.wrong} disturbed, worst {report.worst:.1e}, {result.seconds:.0f} s {report.findings[:1]}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, help="folder of GGUF files")
    parser.add_argument("--stride", type=int, default=1, help="cancel at every so many nodes [1]")
    parser.add_argument("--unprotected-stride", type=int, default=UNPROTECTED_STRIDE, help="without rules; 0: none [5]")
    parser.add_argument("--cuts", action="store_true", help="stop at cuts, one after every node, as on a GPU")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time, each on one core [1]")
    parser.add_argument("--results", type=Path, help="append results to this file, repeat none of it")
    parser.add_argument("--report", type=Path, help="write the tables here")
    arguments = parser.parse_args()
    models = sorted(arguments.models.glob("*.gguf"))
    file = ResultFile(arguments.results)
    way = Way(cuts=arguments.cuts, stride=arguments.stride)
    protected = sweep_all(models, file, way, arguments.jobs)
    # The rules change nothing for attention.
    kinds = {result.model: result.report.memory_kind for result in protected if result.report is not None}
    ruled = [path for path in models if kinds.get(path.stem) in {"recurrent", "hybrid"}]
    naive_way = Way(protected=False, cuts=arguments.cuts, stride=arguments.unprotected_stride)
    naive = sweep_all(ruled, file, naive_way, arguments.jobs) if naive_way.stride else []
    text = page(protected, naive, way)
    sys.stdout.write(text)
    if arguments.report is not None:
        arguments.report.write_text(text)
    crashed = any(CRASHED in (result.refused or "") for result in protected)
    return 1 if crashed or any(result.report.wrong for result in protected if result.report is not None) else 0


if __name__ == "__main__":
    sys.exit(main())
