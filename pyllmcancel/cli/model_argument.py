"""The argument of ``serve`` without an option, and the check of a model's file."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from pyllmcancel.cli.options import Action
from pyllmcancel.cli.parser import nearest
from pyllmcancel.errors import UsageError
from pyllmcancel.hub.known import KNOWN
from pyllmcancel.hub.names import REPOSITORY, SUFFIX
from pyllmcancel.models import PACKAGED_NAME

NAMES = (*KNOWN, PACKAGED_NAME)
MAGIC = b"GGUF"
MAX_SHOWN = 3  # limit of files in a message


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    text = "the same as --model FILE, --model NAME or --hf-repo NAME"
    named: Any = {"action": partial(Action, does=set_named), "nargs": "?"}
    parser.add_argument("named", metavar="MODEL", help=text, **named)
    parser.set_defaults(models=())


def each_model(_parser: Any, namespace: argparse.Namespace, path: Path, _option: Any) -> None:
    """Keep every ``--model``; the last one is the model of a server that serves one."""
    namespace.model = path
    namespace.models = (*namespace.models, path)


def set_named(parser: Any, namespace: argparse.Namespace, value: str | None, _option: Any) -> None:
    """Set ``--model`` or ``--hf-repo``. The environment's values do not count then."""
    if value is None:
        return
    for name, option in (("model", "--model"), ("hf_repo", "--hf-repo")):
        # An option that was not given still has the parser's own default.
        if getattr(namespace, name) is not parser.get_default(name):
            parser.error(f"{value} and {option} exclude each other")
    of_hub = is_of_hub(value)
    namespace.hf_repo = value if of_hub else None
    namespace.model = None if of_hub else Path(value)
    namespace.named = namespace.hf_repo or str(namespace.model)  # as a Path has it: "./m.gguf" is "m.gguf"


def check_named(arguments: argparse.Namespace) -> None:
    """Raise UsageError if an option after the argument names another model."""
    if arguments.named is not None and arguments.named not in (str(arguments.model), arguments.hf_repo):
        option = "--hf-repo" if arguments.hf_repo is not None else "--model"
        raise UsageError(f"{arguments.named} and {option} exclude each other")


def is_of_hub(text: str) -> bool:
    """Return whether the text names a model of the hub, not a path that exists or that ends in ``.gguf``."""
    is_file = Path(text).exists() or text.lower().endswith(SUFFIX)
    return not is_file and REPOSITORY.fullmatch(text.partition(":")[0]) is not None


def name_of(arguments: argparse.Namespace) -> str:
    """Return the known name that is given as the model; empty if a file is given."""
    model: Path | None = arguments.model
    return str(model) if str(model) in NAMES and model is not None and not model.is_file() else ""


def check_model_file(path: Path) -> None:
    """Raise UsageError, or OSError, if the path is obviously not that of a model."""
    if path.is_dir():
        found = sorted(one.name for one in path.iterdir() if one.name.lower().endswith(SUFFIX))
        more = f", and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
        has = f"it has {', '.join(found[:MAX_SHOWN])}{more}" if found else "it has no GGUF file"
        raise UsageError(f"{path} is a directory, not a GGUF file; {has}")
    if not path.exists():
        is_word = len(path.parts) == 1 and path.suffix.lower() != SUFFIX
        known = nearest(str(path), NAMES) or f"; known are {', '.join(NAMES)}"
        raise UsageError(f"there is no file {path}" + (f", and no model of that name{known}" if is_word else ""))
    if not path.is_file():
        raise UsageError(f"{path} is not a regular file")
    with path.open("rb") as file:
        begin = file.read(len(MAGIC))
    if not begin:
        raise UsageError(f"{path} is empty")
    if begin != MAGIC:
        raise UsageError(f"{path} is not a GGUF file: it begins with {begin!r}, not with {MAGIC!r}")
