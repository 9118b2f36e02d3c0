"""``--host`` and ``--port``: the sockets, which are opened before anything is loaded."""

from __future__ import annotations

import argparse
import errno
import sys
from typing import TYPE_CHECKING

from pyllmcancel.server.http.listening import listen, raise_file_limit

if TYPE_CHECKING:
    from pyllmcancel.server.http.listening import Listener


def opened(arguments: argparse.Namespace) -> list[Listener] | None:
    """Return sockets that listen on all addresses; None, after a line that says why, if there are none."""
    raise_file_limit()
    try:
        return listen(arguments.host, arguments.port)
    except OSError as error:
        advice = "; --port chooses another port" if error.errno == errno.EADDRINUSE else ""
        sys.stderr.write(f"pyllmcancel: {error.strerror}{advice}\n")
        return None
