"""The options of a draft model, named as in llama-server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pyllmcancel.cli.model_argument import check_model_file
from pyllmcancel.cli.options import add_option, natural, natural_or_auto, number
from pyllmcancel.cli.placement_options import device_names, layers
from pyllmcancel.config import CACHE_TYPES, EngineConfig
from pyllmcancel.errors import UsageError
from pyllmcancel.hub.fetching import HubModel
from pyllmcancel.hub.names import ModelName
from pyllmcancel.placement import Placement

ENGINE = EngineConfig()


def add_draft_model_options(group: argparse._ArgumentGroup) -> None:
    text = "GGUF file of a smaller model with the same vocabulary, which drafts; with --hf-repo-draft: its file there"
    add_option(group, "model-draft", Path, None, text, also=("-md", "--spec-draft-model"), metavar="FILE")
    text = "draft model of the Hugging Face hub, USER/MODEL or USER/MODEL:QUANT, as --hf-repo"
    add_option(group, "hf-repo-draft", str, None, text, also=("-hfd", "-hfrd", "--spec-draft-hf"), metavar="NAME")
    text = "the draft model's drafts of fewer tokens are not used"
    spellings = ("--draft-n-min", "--spec-draft-n-min")
    add_option(group, "draft-min", natural, ENGINE.draft_min, text, also=spellings)
    text = "the draft model stops before a token to which it gives a lower probability"
    add_option(group, "draft-p-min", probability, ENGINE.draft_p_min, text, also=("--spec-draft-p-min",), metavar="P")
    _add_computing_options(group)


def _add_computing_options(group: argparse._ArgumentGroup) -> None:
    text = "compute threads of the draft model; 0: as many as the model has"
    spellings = ("-td", "--spec-draft-threads")
    add_option(group, "threads-draft", natural_or_auto, ENGINE.draft_threads, text, also=spellings)
    text = "the same for prompts; 0: as --threads-draft, or else as the model"
    spellings = ("-tbd", "--spec-draft-threads-batch")
    add_option(group, "threads-batch-draft", natural_or_auto, ENGINE.draft_threads_batch, text, also=spellings)
    types = tuple(CACHE_TYPES)
    text = "type of the keys in the draft model's cells"
    spellings = ("-ctkd", "--spec-draft-type-k")
    add_option(group, "cache-type-k-draft", str, ENGINE.draft_cache_type_k, text, also=spellings, choices=types)
    text = "type of the values in the draft model's cells"
    spellings = ("-ctvd", "--spec-draft-type-v")
    add_option(group, "cache-type-v-draft", str, ENGINE.draft_cache_type_v, text, also=spellings, choices=types)
    text = "number of the draft model's layers to put on devices, as --n-gpu-layers"
    also = ("-ngld", "--n-gpu-layers-draft", "--spec-draft-ngl")
    add_option(group, "gpu-layers-draft", layers, Placement().n_gpu_layers, text, also=also)
    text = "devices of the draft model, separated by commas; none: the CPU alone [those of --device]"
    spellings = ("-devd", "--spec-draft-device")
    add_option(group, "device-draft", device_names, None, text, also=spellings, metavar="NAMES")


def draft_model_settings(arguments: argparse.Namespace, placement: Placement) -> dict[str, Any]:
    """Return the fields of `EngineConfig` for a draft model, whose file may have to be fetched.

    Parameters
    ----------
    placement
        The model's own.

    Raises
    ------
    UsageError, OSError
        The file is obviously not that of a model.
    """
    path = None if arguments.hf_repo_draft is not None else arguments.model_draft
    if path is not None:
        check_model_file(path)
    devices = placement.devices if arguments.device_draft is None else arguments.device_draft
    return {
        "draft_model": path,
        "draft_threads": arguments.threads_draft,
        "draft_threads_batch": arguments.threads_batch_draft,
        "draft_cache_type_k": arguments.cache_type_k_draft,
        "draft_cache_type_v": arguments.cache_type_v_draft,
        "draft_placement": Placement(
            n_gpu_layers=arguments.gpu_layers_draft,
            devices=devices,
            kv_offload=placement.kv_offload,
            op_offload=placement.op_offload,
            fit=placement.fit,
            fit_target=placement.fit_target,
        ),
    }


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


def probability(text: str) -> float:
    found = number(text)
    if not 0.0 <= found <= 1.0:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, not {text}")
    return found
