"""The command ``pyllmcancel``."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel.cli.parser import Parser


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    if os.getpid() == 1:
        # The kernel ignores signals that a container's first process does not handle. Without this handler a SIGTERM
        # during the imports would be lost, and the process would be killed after its whole grace period.
        from pyllmcancel.system import leave

        signal.signal(signal.SIGTERM, leave)
    try:
        return run(argv)
    except KeyboardInterrupt:
        # The signal came before a server could handle it, or the server raised it once more after it had ended.
        return 128 + signal.SIGINT


def run(argv: list[str] | None) -> int:
    arguments = command_parser().parse_args(argv)
    from pyllmcancel.cli.failures import Failure

    try:
        status: int = arguments.run(arguments)
    except Failure as failure:
        sys.stderr.write(f"pyllmcancel: {failure}\n")
        return failure.status
    return status


def command_parser() -> Parser:
    """Return the parser of the command line, with the environment's defaults as they are now."""
    # The import takes a second on a busy machine. Here a Ctrl-C during it ends the program without a traceback.
    from pyllmcancel import __version__
    from pyllmcancel.cli import bench, models, serve, terminal
    from pyllmcancel.cli.parser import Parser

    parser = Parser(prog="pyllmcancel", description="An LLM server whose cancels are exact.")
    parser.add_argument("--version", action="version", version=f"pyllmcancel {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    serve.add_parser(commands)
    terminal.add_parsers(commands)
    models.add_parser(commands)
    bench.add_parser(commands)
    return parser
