"""Measure cancels on a GPU, or another device that llama.cpp finds: ``python -m bench.gpu --model M --out DIR``.

``cuts`` asks the core alone: what cuts cost, and how long a prompt goes on after its cancel. ``servers`` starts
pyllmcancel and llama-server in turn: from a client's close to the idle server, the next request's first token, and
tokens a second. Each part writes one JSON file into DIR and prints its lines; without a part both run.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.gpu import cuts, servers

PARTS = {"cuts": cuts.measure, "servers": servers.measure}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the figures")
    parser.add_argument("--gpu-layers", type=int, default=999, help="layers to offload; default: %(default)s")
    parser.add_argument("--prompts", type=int, nargs="+", default=[8192, 32768], help="tokens; default: 8192 32768")
    parser.add_argument("--chunks", type=int, nargs="+", default=[512, 2048], help="tokens a step; default: 512 2048")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 128], help="default: 1 8 32 128")
    parser.add_argument("--trials", type=int, default=30, help="cancels of each kind; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each; default: %(default)s")
    options = parser.parse_args()
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


if __name__ == "__main__":
    main()
