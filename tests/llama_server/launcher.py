"""Stands where llama.cpp's tests expect ``llama-server``: takes its options, and has a ``pyllmcancel serve`` made.

Options that both know are passed on. Options that ask for a download get a stand-in (`models`), by the environment
variable ``STAND_INS``, a JSON object of files by repository. What is left belongs to features that there are not here.

It imports nothing that takes time: `zygote` has done that.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

PASSED = {
    *("--port", "--host", "--temp", "--seed", "--threads", "--n-gpu-layers", "--batch-size", "--ubatch-size"),
    *("--ctx-size", "--parallel", "--n-predict", "--alias", "--tags", "--api-key", "--cors-origins", "--lora"),
    *("--chat-template", "--chat-template-file", "--model", "-ctk", "-ctv", "-fa", "--slots", "--no-slots"),
    *("--metrics", "--no-ui", "--pooling"),
}
# With a value that goes with them.
DROPPED = {
    *("--hf-repo", "--hf-file", "--model-url", "--model-draft", "--models-dir", "--models-max", "--models-preset"),
    *("--slot-save-path", "--grp-attn-n", "--grp-attn-w", "--spec-type", "--spec-draft-n-max", "--spec-draft-n-min"),
    *("--spec-synth-len", "--spec-synth-rates", "--reasoning", "--reasoning-format", "--mmproj-url", "--media-path"),
    *("--sleep-idle-seconds", "--cache-ram", "--tools", "--tools-runtime", "--mcp-servers-config"),
    "--mcp-servers-json",
}
SWITCHES = {"--slots", "--no-slots", "--metrics", "--no-ui"}
# Their tests ask for two slots, and some fill more than half of the context: the verdicts are for an undivided one.
OWN = ["--threads", "1", "--drain", "0.1", "--kv-unified"]


def translate(options: list[str], stand_ins: dict[str, str]) -> list[str]:
    """Options of ``pyllmcancel serve``."""
    ours = list(OWN)
    repository = None
    rest = iter(options)
    for option in rest:
        if option in SWITCHES:
            ours.append(option)
        elif option in PASSED:
            ours += [option, next(rest)]
        elif option in DROPPED:
            value = next(rest)
            repository = value if option == "--hf-repo" else repository
    # Where nothing is said llama-server does as these say.
    if "--metrics" not in ours:
        ours.append("--no-metrics")
    if "--cors-origins" not in ours:
        ours += ["--cors-origins", "*"]
    # Without any model both serve what they have: llama-server all of a folder, this one the packaged one.
    if "--model" not in ours and repository is not None:
        if repository not in stand_ins:
            raise SystemExit(f"there is no stand-in for the model {repository}")
        ours += ["--model", stand_ins[repository]]
    return ours


def run_server(options: list[str], zygote: str) -> int:
    """Have a server forked, stand for it, and return its exit status."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(zygote)
        socket.send_fds(connection, [json.dumps(options).encode()], [1, 2])
        lines = connection.makefile()
        pid = int(lines.readline())
        signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
        status = lines.readline()
    return int(status) if status else 1


if __name__ == "__main__":
    found = translate(sys.argv[1:], json.loads(os.environ["STAND_INS"]))
    sys.exit(run_server(found, os.environ["ZYGOTE"]))
