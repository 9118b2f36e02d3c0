"""The argument of ``serve`` without an option, the models that have to be fetched, and the check of a model's file."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any

from pyllmcancel.cli.converters import ON
from pyllmcancel.cli.options import Action
from pyllmcancel.cli.parser import nearest
from pyllmcancel.engine.loading import Fetch
from pyllmcancel.errors import UsageError
from pyllmcancel.hub.fetching import HubModel, require_library
from pyllmcancel.hub.known import KNOWN
from pyllmcancel.hub.names import REPOSITORY, SUFFIX, ModelName
from pyllmcancel.hub.wheels import NamedModel
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


def model_to_fetch(arguments: argparse.Namespace) -> HubModel | NamedModel | None:
    """Return the model to fetch, if there is one; UsageError if its name is invalid, or a package is missing."""
    check_named(arguments)
    offline = is_offline(arguments)
    if arguments.hf_repo_draft is not None and not offline:
        require_library()
    if arguments.hf_repo is not None:
        if arguments.model is not None:
            raise UsageError("--model and --hf-repo exclude each other")
        if not offline:
            require_library()
        return HubModel(ModelName.parse(arguments.hf_repo, arguments.hf_file), arguments.hf_token, offline=offline)
    if arguments.hf_file is not None:
        raise UsageError("--hf-file names a file of --hf-repo, which is missing")
    known = KNOWN.get(name_of(arguments))
    return None if known is None else NamedModel(known, offline=offline)


def is_offline(arguments: argparse.Namespace) -> bool:
    """Return whether models are loaded from the cache only."""
    return arguments.offline or os.environ.get("HF_HUB_OFFLINE", "").lower() in ON


def draft_model_to_fetch(arguments: argparse.Namespace) -> HubModel | None:
    """Return the draft model that has to be fetched; UsageError if its name is invalid."""
    if arguments.hf_repo_draft is None:
        return None
    file = None if arguments.model_draft is None else str(arguments.model_draft)
    name = ModelName.parse(arguments.hf_repo_draft, file, "--hf-repo-draft")
    return HubModel(name, arguments.hf_token, offline=is_offline(arguments))


def fetches_of(arguments: argparse.Namespace) -> dict[str, Fetch]:
    """Return what is to be fetched, by the field of `EngineConfig` that it sets; UsageError if a name is invalid."""
    model, draft_model = model_to_fetch(arguments), draft_model_to_fetch(arguments)
    fetches: dict[str, Fetch] = {} if model is None else {"model": model.fetch}
    if isinstance(model, HubModel) and arguments.mmproj is None and arguments.mmproj_auto:
        fetches["mmproj"] = model.fetch_projector
    return fetches if draft_model is None else {**fetches, "draft_model": draft_model.fetch}


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
