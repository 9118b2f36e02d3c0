"""Started by the Python that has xllamacpp: serve until a signal ends the process. Its one argument is JSON."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any


def main(parameters: dict[str, Any]) -> None:
    import xllamacpp  # type: ignore[import-not-found]

    params = xllamacpp.CommonParams()
    params.model.path = parameters["model"]
    params.hostnames = [parameters["host"]]
    params.port = parameters["port"]
    params.n_ctx = parameters["ctx_size"]
    params.n_parallel = parameters["parallel"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = parameters["threads"]
    server = xllamacpp.Server(params)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    del server


if __name__ == "__main__":
    # Blocked before the library starts its threads, so that they inherit it and the main thread alone takes them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(json.loads(sys.argv[1]))
