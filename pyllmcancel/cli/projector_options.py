"""The options of a model's projector, named as in llama-server."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from pyllmcancel.cli.model_argument import check_model_file
from pyllmcancel.cli.options import add_option, add_switch, natural
from pyllmcancel.config import EngineConfig
from pyllmcancel.hub.fetching import HubModel

ENGINE = EngineConfig()


def add_projector_options(group: argparse._ArgumentGroup) -> None:
    text = "GGUF file of the model's projector: prompts may then have pictures, or sounds"
    add_option(group, "mmproj", Path, None, text, also=("-mm",), metavar="FILE")
    text = "with --hf-repo: use the projector that lies beside the model, if there is one"
    add_switch(group, "mmproj-auto", True, text)
    text = "encode pictures on a GPU, if there is one"
    add_switch(group, "mmproj-offload", ENGINE.mmproj_offload, text)
    text = "minimum of tokens of a picture, for projectors that take pictures of any size [as the projector says]"
    add_option(group, "image-min-tokens", natural, None, text)
    text = "limit of tokens of a picture, for projectors that take pictures of any size [as the projector says]"
    add_option(group, "image-max-tokens", natural, None, text)
    text = "limit of encoded pictures that are kept, in MiB"
    add_option(group, "media-cache-mib", natural, ENGINE.media_cache_mib, text)


def projector_to_fetch(arguments: argparse.Namespace, model: object) -> Callable[..., Path | None] | None:
    """Return the function that fetches the projector of a model of the hub, if one is to be looked for."""
    if not isinstance(model, HubModel) or arguments.mmproj is not None or not arguments.mmproj_auto:
        return None
    return model.fetch_projector


def check_projector(arguments: argparse.Namespace) -> None:
    """Raise UsageError or OSError if the projector's file is obviously not one."""
    if arguments.mmproj is not None:
        check_model_file(arguments.mmproj)
