"""Measure cancels on a GPU, or another device that llama.cpp finds: ``python -m bench.gpu --model M --out DIR``.

``cuts`` asks the core alone: what cuts cost, and how long a prompt goes on after its cancel. ``servers`` starts
pyllmcancel and llama-server in turn: from a client's close to the idle server, the next request's first token, and
tokens a second. Each part writes one JSON file into DIR and prints its lines; without a part both run.

``--plan`` measures what is to be known of a GPU, in runs of at most nine minutes (`bench.gpu.plan`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.gpu import plan, products, servers


def measure_cuts(options: argparse.Namespace) -> Iterator[servers.Row]:
    from bench.gpu import cuts  # needs the compiled package, which a machine that begins with the plan does not have

    return cuts.measure(options)


PARTS = {"cuts": measure_cuts, "servers": servers.measure}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder for the figures")
    parser.add_argument("--gpu-layers", type=int, help="layers to offload; default: 999, of the toy without a build 0")
    parser.add_argument("--prompts", type=int, nargs="+", default=[8192, 32768], help="tokens; default: 8192 32768")
    parser.add_argument("--chunks", type=int, nargs="+", default=[512, 2048], help="tokens a step; default: 512 2048")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 128], help="default: 1 8 32 128")
    parser.add_argument("--trials", type=int, default=30, help="cancels of each kind; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each; default: %(default)s")
    planned = parser.add_argument_group("the plan")
    planned.add_argument(
        "--plan", action="store_true", help="go on with the plan; 0: all is done, 2: run again, 1: see NOT MEASURED"
    )
    planned.add_argument("--toy", action="store_true", help="try the plan: the packaged model, few of all")
    planned.add_argument(
        "--backend",
        choices=["none", *products.BACKENDS],
        help="build the servers with it; none: those that are installed; default: cuda, of the toy none",
    )
    planned.add_argument("--minutes", type=float, default=9.0, help="of a run; default: %(default)g")
    planned.add_argument("--arch", default="90-real", help="of CUDA, for the build; default: %(default)s")
    planned.add_argument("--models", nargs="+", choices=[one.name for one in plan.FULL.models], help="default: all")
    planned.add_argument("--model-dir", type=Path, default=Path(tempfile.gettempdir()), help="where models are written")
    options = parser.parse_args()
    if options.backend is None:
        options.backend = "none" if options.toy else "cuda"
    if options.gpu_layers is None:
        options.gpu_layers = 0 if options.toy and options.backend == "none" else 999
    if options.plan:
        options.out.mkdir(parents=True, exist_ok=True)
        return plan.run(options)
    if options.model is None:
        parser.error("--model is needed without --plan")
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.parts or PARTS:
        rows = []
        for row in PARTS[name](options):
            rows.append(row)
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
            (options.out / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
