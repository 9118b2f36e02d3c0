"""The command ``pyllmcancel``."""

from __future__ import annotations

import argparse
import sys

from pyllmcancel import __version__
from pyllmcancel.cli import bench, serve


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="pyllmcancel", description="An LLM server whose cancels are exact.")
    parser.add_argument("--version", action="version", version=f"pyllmcancel {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    serve.add_parser(commands)
    bench.add_parser(commands)
    arguments = parser.parse_args(argv)
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
