"""Measure what is to be known of a GPU, in runs of at most nine minutes: ``python -m bench.gpu --out DIR``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bench.gpu import plan, products


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu", description=plan.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for figures and builds")
    parser.add_argument("--gpu-layers", type=int, help="layers to offload; default: 999, of the toy without a build 0")
    parser.add_argument("--toy", action="store_true", help="try the plan: the packaged model, few of all")
    parser.add_argument(
        "--backend",
        choices=["none", *products.BACKENDS],
        help="build the servers with it; none: those that are installed; default: cuda, of the toy none",
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="of a run; default: %(default)g")
    parser.add_argument("--arch", default="90-real", help="of CUDA, for the build; default: %(default)s")
    parser.add_argument("--models", nargs="+", choices=[one.name for one in plan.FULL.models], help="default: all")
    parser.add_argument("--model-dir", type=Path, default=Path(tempfile.gettempdir()), help="where models are written")
    options = parser.parse_args()
    if options.backend is None:
        options.backend = "none" if options.toy else "cuda"
    if options.gpu_layers is None:
        options.gpu_layers = 0 if options.toy and options.backend == "none" else 999
    options.out.mkdir(parents=True, exist_ok=True)
    return plan.run(options)


if __name__ == "__main__":
    sys.exit(main())
