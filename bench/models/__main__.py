"""``python -m bench.models NAME … [--model FILE] [--json FILE]``; the exit status is 1 when one fails."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.models import front, fronts, moves, storm
from bench.models.settings import Settings
from bench.parts import Part, parser_of, run_parts
from pyllmcancel.models import packaged_model_path

PARTS: dict[str, Part[Settings]] = {
    "storm": storm.run,
    "replicas": storm.replicas,
    "front": front.run,
    "fronts": fronts.run,
    "moves": moves.run,
}


def main() -> int:
    return run_parts(PARTS, parse(), Settings)


def parse() -> argparse.Namespace:
    parser = parser_of("python -m bench.models", "Several models behind one address, on a real server", PARTS)
    parser.add_argument("--model", type=Path, default=packaged_model_path(), help="of which copies are served")
    parser.add_argument("--runs", type=int, help="repetitions, or requests")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, help="append the server's log to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
