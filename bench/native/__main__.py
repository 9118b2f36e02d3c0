"""``python -m bench.native``: run the microbenchmarks on one or several models."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.native import abort_latency, step_boundary, step_pause, throughput
from bench.native.probe_module import load_probe
from bench.native.tables import Table, as_text, write_json
from bench.peers.programs import ROOT
from pyllmcancel import _native
from pyllmcancel.models import packaged_model_path

BENCHMARKS = ("abort-latency", "step-boundary", "step-pause", "throughput")


def measured(name: str, path: Path, options: argparse.Namespace) -> Table:
    """One benchmark on one model."""
    threads, samples = options.threads, options.samples
    if name == "step-pause":
        how = {"rounds": options.rounds, "gpu_layers": options.gpu_layers, "clients": options.clients}
        return step_pause.measure(path, path.stem, threads=max(threads), **how)
    probe = load_probe()
    about = probe, probe.Model.load(str(path)), path.stem
    match name:
        case "abort-latency":
            return abort_latency.measure(*about, threads=threads, ubatches=options.ubatches, samples=samples)
        case "step-boundary":
            return step_boundary.measure(_native, probe, str(path), path.stem)
        case _:
            plan = throughput.Plan(threads=max(threads), rounds=options.rounds)
            return throughput.measure(_native, path, path.stem, plan)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for, print each table, and write one JSON file for each benchmark and model."""
    parser = argparse.ArgumentParser(prog="python -m bench.native", description="Measure the native core.")
    parser.add_argument("benchmarks", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument(
        "--model", type=Path, action="append", help="a GGUF file, repeatable; default: the packaged one"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="compute threads; default: 1 2")
    parser.add_argument("--ubatches", type=int, nargs="+", default=abort_latency.UBATCHES, help="of abort-latency")
    parser.add_argument("--samples", type=int, default=25, help="of each row; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="of throughput and step-pause; default: %(default)s")
    parser.add_argument("--clients", type=int, nargs="+", default=step_pause.CLIENTS, help="of step-pause")
    parser.add_argument("--gpu-layers", type=int, default=0, help="of step-pause; default: %(default)s")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="default: build/bench")
    options = parser.parse_args(arguments)
    if unknown := set(options.benchmarks) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    for name in options.benchmarks or BENCHMARKS:
        for path in options.model or [packaged_model_path()]:
            table = measured(name, path, options)
            conditions = {"model_file": path.name, "model_mib": round(path.stat().st_size / 2**20, 1)}
            write_json(table, options.out / f"micro-{name}-{path.stem}.json", conditions)
            sys.stdout.write(f"{path.stem}: {as_text(table)}\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
