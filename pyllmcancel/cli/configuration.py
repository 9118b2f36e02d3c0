"""The configuration that the arguments of ``serve`` describe. A wrong one is a UsageError, or an OSError for a file."""

from __future__ import annotations

import argparse
import json
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pyllmcancel.chat.template import CHATML
from pyllmcancel.cli.keys import all_keys
from pyllmcancel.cli.model_argument import check_model_file, name_of
from pyllmcancel.cli.opening import storage_of
from pyllmcancel.cli.options import dest_of, split
from pyllmcancel.cli.serve_options import PLACEMENT, SAMPLING_FIELDS
from pyllmcancel.cli.workers import front_of, worker_key
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.compiled import compiled_module
from pyllmcancel.engine.fitting import resolved
from pyllmcancel.errors import InvalidRequestError, UsageError
from pyllmcancel.hub.known import KNOWN
from pyllmcancel.placement import Placement
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.server.config import ChatDefaults, MediaSettings, ServerConfig
from pyllmcancel.server.limits import Limits

# llama.cpp renders these templates by code of its own. "chatml" is missing: the package has a Jinja template for it,
# which can do more.
NAMES = (
    "bailing bailing-think bailing2 chatglm3 chatglm4 command-r deepseek deepseek-ocr deepseek2 deepseek3 exaone-moe"
    " exaone3 exaone4 falcon3 gemma gigachat glmedge gpt-oss granite granite-4.0 granite-4.1 grok-2 hunyuan-dense"
    " hunyuan-moe hunyuan-vl kimi-k2 llama2 llama2-sys llama2-sys-bos llama2-sys-strip llama3 llama4 megrez minicpm"
    " mistral-v1 mistral-v3 mistral-v3-tekken mistral-v7 mistral-v7-tekken monarch openchat orion pangu-embedded phi3"
    " phi4 rwkv-world seed_oss smolvlm solar-open vicuna vicuna-orca yandex zephyr"
)
BUILT_IN = frozenset(NAMES.split())


def fields_of(kind: type, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a configuration that have an option of the same name."""
    names: tuple[str, ...] = kind.__slots__  # type: ignore[attr-defined]
    return {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}


def server_config(arguments: argparse.Namespace) -> ServerConfig:
    owners, admins = all_keys(arguments)
    options = fields_of(ServerConfig, arguments) | {
        "engine": engine_config(arguments),
        "api_keys": owners,
        "admin_api_keys": admins,
        "sampling": sampling_params(arguments),
        "sampling_given": frozenset(given_sampling(arguments)),
        "chat_template": chat_template(arguments),
        "chat": chat_defaults(arguments),
        "limits": limits(arguments),
        "media": media_settings(arguments),
        "bound_to": tuple(name.strip() for name in arguments.host.split(",")),
        "storage": storage_of(arguments),
        "slot_save_path": folder(arguments.slot_save_path, "--slot-save-path"),
        "worker_key": worker_key(arguments),
        "front": front_of(arguments),
    }
    return ServerConfig(**options)


def engine_config(arguments: argparse.Namespace) -> EngineConfig:
    options = fields_of(EngineConfig, arguments)
    options["lora"] = arguments.lora + arguments.lora_scaled
    options["model"] = None if name_of(arguments) else arguments.model
    options["placement"] = placement_of(arguments)
    options["draft_sources"] = arguments.spec_type
    if arguments.reranking:
        if arguments.pooling not in ("auto", "rank"):
            raise UsageError(f"--reranking needs --pooling rank, not {arguments.pooling}")
        options["pooling"] = "rank"
    options |= draft_model_settings(arguments, options["placement"])
    # As in llama-server, --parallel divides the context among the slots.
    if arguments.kv_unified is None and arguments.parallel is not None and arguments.parallel > 1:
        options["kv_unified"] = False
    if arguments.parallel is None:
        del options["parallel"]
    options["alias"] = arguments.alias or arguments.hf_repo or name_of(arguments) or None
    options["named_slots"] = arguments.slot_save_path is not None
    config = EngineConfig(**options)
    for path in (arguments.mmproj, config.draft_model, config.model, *(path for path, _ in config.lora)):
        if path is not None:
            check_model_file(path)
    return config


def placement_of(arguments: argparse.Namespace) -> Placement:
    options = fields_of(Placement, arguments)
    return Placement(devices=arguments.device, override_tensors=arguments.override_tensor, **options)


def draft_model_settings(arguments: argparse.Namespace, placement: Placement) -> dict[str, Any]:
    """Return the fields of `EngineConfig` for a draft model, beside a model that is placed so."""
    own = ("threads", "threads_batch", "cache_type_k", "cache_type_v")
    shared = {name: getattr(placement, name) for name in ("kv_offload", "op_offload", "fit", "fit_target")}
    devices = placement.devices if arguments.device_draft is None else arguments.device_draft
    return {f"draft_{name}": getattr(arguments, f"{name}_draft") for name in own} | {
        "draft_model": None if arguments.hf_repo_draft is not None else arguments.model_draft,
        "draft_placement": Placement(n_gpu_layers=arguments.gpu_layers_draft, devices=devices, **shared),
    }


def check_placement(placement: Placement) -> None:
    """Raise UsageError if the placement contradicts itself, or names something that is not there."""
    if placement != PLACEMENT:  # The default needs no look-up here: the loading thread starts the back ends.
        resolved(placement, compiled_module())


def limits(arguments: argparse.Namespace) -> Limits:
    return Limits(
        max_body=arguments.max_body_mib << 20,
        max_bodies=max(arguments.max_bodies_mib, arguments.max_body_mib) << 20,
        **fields_of(Limits, arguments),
    )


def media_settings(arguments: argparse.Namespace) -> MediaSettings:
    return MediaSettings(
        urls=arguments.media_url,
        path=folder(arguments.media_path, "--media-path"),
        max_items=arguments.media_max_items,
        max_bytes=arguments.media_max_mib << 20,
        max_pixels=arguments.media_max_pixels,
        max_seconds=arguments.media_max_seconds,
        max_prepared=arguments.media_prepared_mib << 20,
        fetch_timeout=arguments.media_timeout,
    )


def folder(path: Path | None, option: str) -> Path | None:
    """Return the path; UsageError if it is not that of a folder."""
    if path is not None and not path.is_dir():
        raise UsageError(f"{option} {path} is not a folder")
    return path


def sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    """Return the defaults of requests; UsageError, which names the option, for a value that no request may have."""
    known = KNOWN.get(name_of(arguments))
    advised = {} if known is None else known.sampling
    try:
        return SamplingParams(**{**advised, **given_sampling(arguments)})
    except InvalidRequestError as error:
        field, _, rest = str(error).partition(" ")
        option = next((split(names)[0][0] for names, known, _ in SAMPLING_FIELDS if known == field), None)
        raise UsageError(str(error) if option is None else f"{option} {rest}") from None


def given_sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of SamplingParams that an option sets."""
    given = {field: getattr(arguments, dest_of(names)) for names, field, _ in SAMPLING_FIELDS}
    if arguments.samplers is not None:
        given["samplers"] = tuple(filter(None, arguments.samplers.split(";")))
    return {field: value for field, value in given.items() if value is not None}


def chat_defaults(arguments: argparse.Namespace) -> ChatDefaults:
    variables = {"preserve_reasoning": arguments.reasoning_preserve}
    if arguments.reasoning != "auto":
        variables["enable_thinking"] = arguments.reasoning == "on"
    if arguments.reasoning_effort not in (None, "default"):
        variables["reasoning_effort"] = arguments.reasoning_effort
    options = fields_of(ChatDefaults, arguments) | {
        "template_variables": variables | template_variables(arguments.chat_template_kwargs),
        "jinja": arguments.jinja and arguments.chat_template not in BUILT_IN,
    }
    return ChatDefaults(**options)


def chat_template(arguments: argparse.Namespace) -> str | None:
    """The template as Jinja, or a name of `BUILT_IN`; None: the model's own. UsageError if the option is neither."""
    text: str | None = arguments.chat_template
    if arguments.chat_template_file is not None:
        if text is not None:
            raise UsageError("--chat-template and --chat-template-file exclude each other")
        return str(arguments.chat_template_file.read_text("utf-8"))
    if text is None or "{" in text or text in BUILT_IN:
        return text
    if text == "chatml":
        return CHATML
    nearest = get_close_matches(text, ["chatml", *BUILT_IN], 1)
    hint = f"; is it {nearest[0]}?" if nearest else ""
    raise UsageError(f"--chat-template must be Jinja, or the name of one of llama.cpp's templates, not {text!r}{hint}")


def template_variables(text: str | None) -> dict[str, Any]:
    try:
        found = {} if text is None else json.loads(text)
    except ValueError as error:
        raise UsageError(f"--chat-template-kwargs is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError("--chat-template-kwargs must be a JSON object")
    return found
