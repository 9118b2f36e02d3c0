"""``python -m bench.typing_picture``"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import bench.typing_picture as package
from bench.typing_picture.draw import drawn
from bench.typing_picture.measure import measured
from bench.typing_picture.times import Key, Typing


def main() -> None:
    parser = argparse.ArgumentParser(description=package.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path)
    source.add_argument("--draw", type=Path, metavar="TIMES.json")
    parser.add_argument(
        "--typed-last", action="store_true", help="what is typed is the end of the prompt, not its beginning"
    )
    parser.add_argument("out", type=Path, metavar="OUT.svg")
    arguments = parser.parse_args()
    if arguments.model is not None:
        found = measured(arguments.model, typed_last=arguments.typed_last)
        arguments.out.with_suffix(".json").write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    else:
        found = read(arguments.draw)
    arguments.out.write_text(drawn(found))


def read(path: Path) -> list[Typing]:
    return [
        Typing(one["server"], one["version"], [Key(**key) for key in one["keys"]])
        for one in json.loads(path.read_text())
    ]


if __name__ == "__main__":
    main()
