"""``python -m bench.scenarios NAME … [--model FILE | --tiny] [--json FILE]``; the exit status is 1 when one fails."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.scenarios import batch, queued_hangup, resume, sigterm, soak, storming, tabby, thousand
from bench.scenarios.harness import Bench, UnsuitableModelError
from bench.scenarios.report import Report
from pyllmcancel.models import packaged_model_path

Scenario = Callable[[Bench], Awaitable[Report]]

SCENARIOS: dict[str, Scenario] = {
    "tabby": tabby.run,
    "ik-llama": queued_hangup.run_ik_llama,
    "batch": batch.run,
    "queued-hangup": queued_hangup.run,
    "sigterm": sigterm.run,
    "thousand": thousand.run,
    "resume": resume.run,
    "storm": storming.run,
    "soak": soak.run,
}


def main() -> int:
    arguments = parse()
    # Ended from outside, the servers under test are to end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(
            model=tiny_model(Path(folder)) if arguments.tiny else arguments.model or packaged_model_path(),
            threads=arguments.threads,
            ctx_size=arguments.ctx_size,
            runs=arguments.runs,
            seed=arguments.seed,
            log=arguments.log,
            seconds=arguments.seconds,
            plots=arguments.plots,
        )
        try:
            reports = [asyncio.run(tried(name, bench)) for name in arguments.names]
        except KeyboardInterrupt:
            return 130
    if arguments.json is not None:
        results = {"model": bench.model.name, "scenarios": [report.as_dict() for report in reports]}
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if all(report.passed for report in reports) else 1


async def tried(name: str, bench: Bench) -> Report:
    """Run one scenario and show its report; a model that does not suit it counts as a failure."""
    try:
        report = await SCENARIOS[name](bench)
    except UnsuitableModelError as error:
        report = Report(name)
        report.check("the model suits the scenario", False, error)
    sys.stdout.write(f"{report}\n")
    sys.stdout.flush()
    return report


def tiny_model(folder: Path) -> Path:
    """A llama with random weights, slow enough (milliseconds a token) to be cancelled in the middle."""
    from tests.support.tiny_models import write_tiny_llama

    shape = {"n_layer": 8, "n_embd": 256, "n_head": 8, "n_head_kv": 4, "n_ff": 1024, "n_ctx_train": 16_384}
    return write_tiny_llama(folder / "tiny-llama.gguf", **shape)  # type: ignore[arg-type]


def parse() -> argparse.Namespace:
    lines = [f"  {name:20} {(scenario.__doc__ or '').strip().splitlines()[0]}" for name, scenario in SCENARIOS.items()]
    parser = argparse.ArgumentParser(
        prog="python -m bench.scenarios",
        description="End-to-end acceptance against a real server:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", choices=SCENARIOS, metavar="NAME")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", type=Path, help="GGUF file; by default the packaged one")
    model.add_argument("--tiny", action="store_true", help="a small llama with random weights, written for the run")
    parser.add_argument("--threads", type=int, default=0, help="the server's compute threads; 0: one per core")
    parser.add_argument("--ctx-size", type=int, default=0, help="the server's context; 0: its own choice")
    parser.add_argument("--runs", type=int, help="repetitions, where a scenario has any")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long a soak lasts; default: %(default)g")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write pictures here, where a scenario has any")
    parser.add_argument("--json", type=Path, help="write figures and checks to this file")
    parser.add_argument("--log", type=Path, help="append the servers' logs to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
