"""Run llama.cpp's own server tests, unmodified, against this server.

    python -m venv build/llama-tests
    build/llama-tests/bin/pip install -r vendor/llama.cpp/tools/server/tests/requirements.txt pytest-timeout
    python -m tests.llama_server --python build/llama-tests/bin/python --report docs/measured/llama-server-tests.md

Their harness starts ``llama-server``; `launcher` is what it finds in that place. ``--results`` keeps what came of each
test, so that a run may be done in parts: ``--only unit/test_completion.py``. Exits with 1 if a test fails for a reason
that ``verdicts.toml`` does not have, or if that has reasons for no test.
"""

import argparse
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.llama_server.models import write_pictures, write_stand_ins
from tests.llama_server.table import page
from tests.llama_server.verdicts import UNEXPLAINED, Result, Verdicts
from tests.support.forked import ZYGOTE

HERE = Path(__file__).resolve().parent
LAUNCHER = HERE / "launcher.py"
ROOT = HERE.parents[1]
THEIRS = ROOT / "vendor" / "llama.cpp" / "tools" / "server" / "tests"
SECONDS_PER_TEST = 90
EVERYTHING = ["unit"]


def main() -> int:
    options = parse_options()
    verdicts = Verdicts()
    tests = collect(options.python, options.only)
    to_run = [test for test in tests if verdicts.applies(test)]
    options.results.parent.mkdir(parents=True, exist_ok=True)
    if not options.report_only:
        with tempfile.TemporaryDirectory() as folder:
            run(options.python, to_run, Path(folder), options.results, options.port)
    results = read_results(options.results)
    judged = []
    for test in tests:
        found = results.get(test, Result(test, "failed", "no result")) if verdicts.applies(test) else None
        judged.append(verdicts.judge(found or Result(test, "not run")))
    if options.report is not None:
        options.report.write_text(page(judged))
    unexplained = [verdict for verdict in judged if verdict.verdict == UNEXPLAINED]
    for verdict in unexplained:
        sys.stderr.write(f"{verdict.test}\n    {verdict.why}\n")
    stale = verdicts.stale(tests) if options.only == EVERYTHING else []
    for rule in stale:
        sys.stderr.write(f"verdicts.toml names no test with {rule.tests}\n")
    sys.stderr.write(f"{len(judged)} tests, {len(to_run)} apply, {len(unexplained)} fail for no known reason\n")
    return 1 if unexplained or stale else 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # Theirs run in a folder of their own.
    parser.add_argument(
        "--python", type=os.path.abspath, default=sys.executable, help="a Python that has the tests' requirements"
    )
    parser.add_argument("--only", nargs="+", default=EVERYTHING, help="files, as they are called there")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "llama-server-tests.jsonl")
    parser.add_argument("--report", type=Path, help="write the table to this file")
    parser.add_argument("--report-only", action="store_true", help="run nothing; judge the results that there are")
    parser.add_argument("--port", type=int, default=8120)
    return parser.parse_args()


def collect(python: str, only: list[str]) -> list[str]:
    """Ids of all tests, whether they apply or not."""
    command = [python, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *only]
    done = subprocess.run(command, cwd=THEIRS, env=quiet(), stdout=subprocess.PIPE, text=True, check=True)
    # An id may hold line feeds; pytest writes them escaped.
    return [line for line in done.stdout.splitlines() if line.startswith("unit/")]


def run(python: str, tests: list[str], folder: Path, results: Path, port: int) -> None:
    """Run tests in their own folder, one after the other: each has a server of its own, on the same port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))  # else they would test what answers there
    ids = folder / "ids.txt"
    ids.write_text("\n".join(tests))
    stand_ins = write_stand_ins(folder)
    write_pictures(folder)
    server, zygote = folder / "llama-server", folder / "zygote"
    # -I and -S: nothing but the standard library, which is there at once.
    server.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {LAUNCHER} "$@"\n')
    server.chmod(0o755)
    environment = quiet() | {
        "LLAMA_SERVER_BIN_PATH": str(server),
        "STAND_INS": json.dumps(stand_ins),
        "ZYGOTE": str(zygote),
        "PICTURES": str(folder),
        "RESULTS": str(results.resolve()),
        "PORT": str(port),
        "PYTHONPATH": str(HERE),
    }
    plugins = ["-p", "plugin", "-p", "no:cacheprovider"]
    command = [python, "-m", "pytest", "-q", "--tb=line", *plugins, f"--timeout={SECONDS_PER_TEST}", f"@{ids}"]
    forking = [sys.executable, "-P", str(ZYGOTE), str(zygote)]
    with subprocess.Popen(forking, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is ready
        subprocess.run(command, cwd=THEIRS, env=environment, check=False)


def quiet() -> dict[str, str]:
    """The environment, in which nothing is written beside their files."""
    return dict(os.environ) | {"PYTHONDONTWRITEBYTECODE": "1"}


def read_results(path: Path) -> dict[str, Result]:
    found = map(json.loads, path.read_text().splitlines() if path.exists() else [])
    return {one["test"]: Result(one["test"], one["outcome"], one["message"]) for one in found}


if __name__ == "__main__":
    sys.exit(main())
