"""A server of several models for its page: two that answer, one that goes on loading, and one that fails."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.clients.model import ENVIRONMENT, TEMPLATE, write_patient_model
from tests.support.http_process import START_LIMIT, ServerProcess, until

FAKE = Path(__file__).parents[1] / "support" / "fake_model_server.py"
# The process of the model that STANDS_IN names is a stand-in, which says that half of its load is done until a file is
# removed.
PROGRAM = f"""
import os, sys
from pyllmcancel.cli.router_options import Sources

command_of = Sources.command

def command(self, spec, socket):
    if spec.name != os.environ["STANDS_IN"]:
        return command_of(self, spec, socket)
    return [sys.executable, "-I", "-S", {str(FAKE)!r}, "--host", str(socket), "--alias", spec.name], {{}}

Sources.command = command
from pyllmcancel.__main__ import main
sys.exit(main())
"""
PRESET = """
[*]
parallel = 3
kv-unified = true
chat-template-file = {template}
[chat]
model = {model}
ctx-size = 16384
[coder]
model = {model}
ctx-size = 8192
alias = fim
[slow]
model = {model}
[broken]
model = {broken}
"""


class Models:
    def __init__(self, server: ServerProcess) -> None:
        self.server = server

    def state(self, model: str) -> str:
        status = self.server.http.get(f"/v1/models/{model}").json()["status"]
        return "failed" if status.get("failed") else str(status["value"])

    def until_state(self, model: str, state: str) -> None:
        until(lambda: self.state(model), lambda found: found == state, START_LIMIT)

    def load(self, model: str) -> None:
        self.server.http.post("/models/load", json={"model": model})

    def unload(self, model: str) -> None:
        self.server.http.post("/models/unload", json={"model": model})

    def processes(self, model: str) -> list[int]:
        pids = self.server.children()
        return [pid for pid in pids if f"--alias={model}" in (words := words_of(pid)) or model in words]


def words_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


def standing_in(model: str, folder: Path) -> dict[str, str]:
    """Return the environment of PROGRAM; files in `folder` control the stand-in."""
    (folder / f"{model}.loads").touch()
    return {"STANDS_IN": model, "CONTROL": str(folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@contextmanager
def serving_models(folder: Path, *options: str) -> Iterator[Models]:
    """`options` are those of the process in front."""
    broken = folder / "broken.gguf"
    broken.write_bytes(b"this is no model")
    preset = folder / "models.ini"
    model = write_patient_model(folder / "model.gguf")
    preset.write_text(PRESET.format(model=model, broken=broken, template=TEMPLATE))
    environment = ENVIRONMENT | standing_in("slow", folder)
    given = ("--models-preset", str(preset), *options)
    with ServerProcess(*given, environment=environment, program=PROGRAM) as server:
        yield Models(server.started())
