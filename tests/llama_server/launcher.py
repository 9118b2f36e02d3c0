"""Stands where llama.cpp's tests expect ``llama-server``: takes its options, and has a ``pyllmcancel serve`` made.

Options are passed on as they are; what `serve` refuses is not here. Only a model that would be downloaded is replaced
by a stand-in (`models`), by the environment variable ``STAND_INS``, a JSON object of files by repository, or by
repository and file.

It imports nothing that takes time: `tests.support.zygote` has done that.
"""

import json
import os
import signal
import socket
import sys

SWITCHES_OF_DOWNLOADS = {"--offline"}
OF_DOWNLOADS = {"--hf-repo", "--hf-file"}
OWN = ["--threads", "1", "--drain", "0.1", "--store", "memory"]


def translate(options: list[str], stand_ins: dict[str, list[str]]) -> list[str]:
    ours = list(OWN)
    repository, file = None, None
    rest = iter(options)
    for option in rest:
        if option in OF_DOWNLOADS:
            value = next(rest)
            repository = value if option == "--hf-repo" else repository
            file = value if option == "--hf-file" else file
        elif option not in SWITCHES_OF_DOWNLOADS:
            ours.append(option)
    # Where nothing is said llama-server does as these say.
    if "--metrics" not in ours:
        ours.append("--no-metrics")
    if "--cors-origins" not in ours:
        ours += ["--cors-origins", "*"]
    # Without any model llama-server serves all that it has downloaded.
    if "--model" not in ours and repository is None:
        if "--models-preset" not in ours:
            ours += stand_ins["cache"]
    elif "--model" not in ours and repository is not None:
        model = stand_ins.get(f"{repository}/{file}", stand_ins.get(repository))
        if model is None:
            raise SystemExit(f"there is no stand-in for the model {repository}")
        ours += model
    return ours


def run_server(options: list[str], zygote: str) -> int:
    """Have a server forked, stand for it, and return its exit status."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(zygote)
        message = {"options": options, "environment": dict(os.environ), "folder": os.getcwd()}
        socket.send_fds(connection, [json.dumps(message).encode()], [1, 2])
        lines = connection.makefile()
        pid = int(lines.readline())
        signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
        status = lines.readline()
    return int(status) if status else 1


if __name__ == "__main__":
    found = translate(sys.argv[1:], json.loads(os.environ["STAND_INS"]))
    sys.exit(run_server(found, os.environ["ZYGOTE"]))
