"""The options of ``pyllmcancel serve`` as the arguments of an application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyllmcancel.errors import UsageError

Options = dict[str, Any]
# Each worker sets these itself.
NOT_HERE = ("host", "port", "worker", "worker-url", "worker-key", "workers", "replica", "replicas")


def checked(options: Mapping[str, Any]) -> Options:
    """Return a model's options with dashes in their names; UsageError for those that a worker sets itself."""
    given = {key.replace("_", "-"): value for key, value in options.items()}
    if wrong := sorted(given.keys() & set(NOT_HERE)):
        raise UsageError(f"{wrong[0]} cannot be set for the workers of a model")
    return given


def worker_options(name: str, given: Options) -> Options:
    """Return the options of the workers of a model; without ``model`` or ``hf-repo`` its name is that to load."""
    options = given if given.keys() & {"model", "hf-repo"} else {"model": name, **given}
    # Workers come and go, and several of a machine cannot have one file.
    return {"alias": name, "store": "memory", **options}


def command_line(options: Mapping[str, Any]) -> list[str]:
    """Return options as a command line has them; of a list, each entry is an option of its own."""
    line = []
    for key, value in options.items():
        name = key.replace("_", "-")
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, bool):
                line.append(f"--{name}" if one else f"--no-{name}")
            elif one is not None:
                line.append(f"--{name}={one}")
    return line
