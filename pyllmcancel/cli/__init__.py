"""The command ``pyllmcancel``."""

from __future__ import annotations

import signal
import sys


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    try:
        return run(argv)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def run(argv: list[str] | None) -> int:
    # Imported here, where Ctrl-C is no traceback: it takes a second on a busy machine.
    from pyllmcancel import __version__
    from pyllmcancel.cli import bench, cluster, models, serve, top
    from pyllmcancel.cli.parser import Parser

    parser = Parser(prog="pyllmcancel", description="An LLM server whose cancels are exact.")
    parser.add_argument("--version", action="version", version=f"pyllmcancel {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    serve.add_parser(commands)
    cluster.add_parser(commands)
    models.add_parser(commands)
    top.add_parser(commands)
    bench.add_parser(commands)
    arguments = parser.parse_args(argv)
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
