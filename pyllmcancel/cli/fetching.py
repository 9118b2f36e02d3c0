"""The models, draft models and projectors that have to be fetched before they are loaded."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from pyllmcancel.cli.converters import ON
from pyllmcancel.cli.model_argument import check_named, name_of
from pyllmcancel.errors import UsageError
from pyllmcancel.hub.fetching import HubModel, require_library
from pyllmcancel.hub.known import KNOWN
from pyllmcancel.hub.names import ModelName
from pyllmcancel.hub.wheels import NamedModel


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


def draft_model_to_fetch(arguments: argparse.Namespace, *, offline: bool) -> HubModel | None:
    """Return the draft model that has to be fetched; UsageError if its name is invalid."""
    if arguments.hf_repo_draft is None:
        return None
    file = None if arguments.model_draft is None else str(arguments.model_draft)
    try:
        name = ModelName.parse(arguments.hf_repo_draft, file)
    except UsageError as error:
        raise UsageError(str(error).replace("--hf-repo", "--hf-repo-draft")) from None
    return HubModel(name, arguments.hf_token, offline=offline)


def projector_to_fetch(arguments: argparse.Namespace, model: object) -> Callable[..., Path | None] | None:
    """Return the function that fetches the projector of a model of the hub, if one is to be looked for."""
    if not isinstance(model, HubModel) or arguments.mmproj is not None or not arguments.mmproj_auto:
        return None
    return model.fetch_projector
