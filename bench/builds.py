"""The speed of builds of the package beside each other: ``python -m bench.builds --model FILE.gguf NAME=PYTHON …``.

Each PYTHON is of an environment with another build; ``NAME=VARIANT@PYTHON`` also sets ``PYLLMCANCEL_CPU_VARIANT``. The
builds take turns, each time in a new process and in the other order. Printed are the fastest runs, in tokens per second
of processor time, of the prompts and the decoded tokens of 1, 4 and 8 clients at once, and their shares of the first
build's. One thread computes: then the load of other programs has little influence, and no thread waits by spinning.

`measure` is what such a process runs: nothing but the package is in its environment.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CLIENTS = (1, 4, 8)
PROMPT = 128  # tokens, different ones for each request, so that no prefix is reused
DECODED = 32
PARTS = ("prompt", "decode")


class Build:
    """A Python with a build of the package, by the name that the user gave it."""

    def __init__(self, text: str) -> None:
        self.name, _, rest = text.partition("=")
        self._variant, _, self._python = rest.rpartition("@")
        self.runs: list[dict[str, float]] = []

    def run(self, options: list[str]) -> str:
        """Measure once; returns which back end computed."""
        environment = os.environ | {"PYLLMCANCEL_CPU_VARIANT": self._variant}
        command = [self._python, "-I", __file__, "--measure", *options]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout)
        self.runs.append(found["speeds"])
        return str(found["cpu"])

    def fastest(self, what: str) -> float:
        return max(run[what] for run in self.runs)


# -- in the process of a build ----------------------------------------------------------------------------------------


def measure(model: Path) -> dict[str, Any]:
    from pyllmcancel import Engine, EngineConfig, _native

    config = EngineConfig(model=model, parallel=max(CLIENTS), ctx_size=512, threads=1, cache_ram=0)
    with Engine.load(config) as engine:
        chance = random.Random(0)
        ask(engine, chance, 2, 32, 8)  # what is made at the first step
        speeds = {}
        for n_clients in CLIENTS:
            seconds = ask(engine, chance, n_clients, PROMPT, 1)
            speeds[f"prompt {n_clients}"] = n_clients * PROMPT / seconds
            seconds = ask(engine, chance, n_clients, 8, DECODED)
            speeds[f"decode {n_clients}"] = n_clients * DECODED / seconds
    return {"cpu": _native.cpu_variant() or "linked in", "speeds": speeds}


def ask(engine: Any, chance: random.Random, n_clients: int, n_prompt: int, n_decoded: int) -> float:
    """Ask at once for all clients; returns the seconds of processor time until the last one has its answer."""
    prompts = [[chance.randrange(100, engine.model.n_vocab) for _ in range(n_prompt)] for _ in range(n_clients)]

    def answer(prompt: list[int]) -> int:
        with engine.generate(prompt, temperature=0.0, max_tokens=n_decoded, ignore_eos=True) as stream:
            return sum(len(delta.tokens) for delta in stream)

    with ThreadPoolExecutor(n_clients) as pool:
        begin = time.process_time()
        counts = list(pool.map(answer, prompts))
        seconds = time.process_time() - begin
    if counts != [n_decoded] * n_clients:
        raise SystemExit(f"answers of {counts} tokens came instead of {n_decoded}")
    return seconds


# -- of all builds ----------------------------------------------------------------------------------------------------


def table(builds: list[Build]) -> str:
    """Return the fastest runs as Markdown, and behind each, but the first build's, its share of the first build's."""
    first = builds[0]
    rows = ["| | " + " | ".join(build.name for build in builds) + " |", "|---|" + "--:|" * len(builds)]
    for what in (f"{part} {n_clients}" for part in PARTS for n_clients in CLIENTS):
        cells = [f"{first.fastest(what):.0f}"]
        cells += [f"{one.fastest(what):.0f} ({one.fastest(what) / first.fastest(what):.2f})" for one in builds[1:]]
        rows.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5, help="of each build (default: 5)")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("builds", nargs="*", metavar="NAME=[VARIANT@]PYTHON")
    arguments = parser.parse_args()
    if arguments.measure:
        json.dump(measure(arguments.model), sys.stdout)
        return 0
    if not arguments.builds:
        parser.error("no build is named")
    builds = [Build(text) for text in arguments.builds]
    options = ["--model", str(arguments.model)]
    for number in range(arguments.runs):
        for build in builds if number % 2 == 0 else reversed(builds):
            cpu = build.run(options)
            sys.stderr.write(f"{number + 1} {build.name} ({cpu}): {build.runs[-1]}\n")
    sys.stdout.write(table(builds) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
