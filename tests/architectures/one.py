"""Sweep one model, in a process of its own: ``python -m tests.architectures.one MODEL``; prints one JSON object.

A model that makes llama.cpp end the process ends this one only.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from pyllmcancel.errors import ContextError, ModelLoadError
from tests.architectures.sweep import FailedStepError, sweep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--stride", type=int, default=1, help="cancel at every so many nodes [1]")
    parser.add_argument("--unprotected", action="store_true", help="without the rules for its kind of memory")
    parser.add_argument("--cuts", action="store_true", help="stop at cuts, one after every node")
    arguments = parser.parse_args()
    began = time.process_time()
    how = {"protected": not arguments.unprotected, "cuts": arguments.cuts, "stride": arguments.stride}
    try:
        found = asdict(sweep(arguments.model, **how))
    except (ModelLoadError, ContextError, FailedStepError) as error:
        found = {"refused": f"{type(error).__name__}: {error}"}
    json.dump(found | {"seconds": round(time.process_time() - began, 1)}, sys.stdout)


if __name__ == "__main__":
    main()
