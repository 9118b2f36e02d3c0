"""llama-server's endpoints about the server: ``/props``, ``/slots``, ``/lora-adapters``. None waits for the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, NotRequired

from fastapi import APIRouter, Query, Request
from pydantic import Field

from pyllmcancel import __version__
from pyllmcancel.errors import Error
from pyllmcancel.media.values import Modality
from pyllmcancel.models import packaged_model_path
from pyllmcancel.requests.params import GenerationParams
from pyllmcancel.server.bodies import Incoming, reads
from pyllmcancel.server.errors.responses import ApiError, unsupported
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.llama.params import settings_json
from pyllmcancel.server.openapi.description import answers, errors
from pyllmcancel.server.requests.visible import may_see_all
from pyllmcancel.server.state import state_of
from pyllmcancel.server.wire.fields import ABSENT, BATCH_INVARIANT, Answer, absent
from pyllmcancel.server.wire.generation import LoraScalesBody, pairs
from pyllmcancel.server.wire.tokens import special_text, text_of

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.chat.template import ChatTemplate
    from pyllmcancel.engine.engine import Engine
    from pyllmcancel.requests.adapter_table import LoadedAdapter
    from pyllmcancel.requests.request import Choice

router = APIRouter(tags=["llama-server"])
REFUSED: dict[str, Any] = {"responses": errors(501), "status_code": 501, "response_model": None}


class DefaultSettings(Answer):
    params: dict[str, Any]
    n_ctx: int


class PropsAnswer(Answer):
    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str
    modalities: dict[str, bool]
    media_marker: Annotated[str, Field(description="Stands for a picture or sound in the prompt of `/completion`.")]
    endpoint_slots: bool
    endpoint_props: bool
    endpoint_metrics: bool
    ui: bool
    chat_template: str
    chats: Annotated[bool, Field(description="False if no chat template is known: `chat_template` is ChatML then.")]
    chat_template_caps: dict[str, bool]
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool
    batch_invariant: Annotated[bool, BATCH_INVARIANT]


class NextToken(Answer):
    has_next_token: bool
    has_new_line: bool
    n_remain: int
    n_decoded: int


class SlotAnswer(Answer):
    """`params` and what follows are there while the slot computes for a request."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool
    request_id: NotRequired[Annotated[str | None, absent("Ours: the request that the slot computes for.")]]
    n_prompt_tokens: NotRequired[Annotated[int, Field(default=0)]]
    n_prompt_tokens_processed: NotRequired[Annotated[int, Field(default=0)]]
    n_prompt_tokens_cache: NotRequired[Annotated[int, Field(default=0)]]
    params: NotRequired[Annotated[dict[str, Any] | None, ABSENT]]
    next_token: NotRequired[Annotated[list[NextToken], Field(default=[])]]


class LoraAdapter(Answer):
    """The last two fields are there for an activated LoRA."""

    id: int
    path: str
    scale: Annotated[float, Field(description="For requests that do not choose adapters.")]
    task_name: str
    prompt_prefix: str
    alora_invocation_string: NotRequired[Annotated[str, Field(default="")]]
    alora_invocation_tokens: NotRequired[Annotated[list[int], Field(default=[])]]


class Success(Answer):
    success: Literal[True]


@router.get(
    "/props",
    summary="The model that is served, and the server's properties",
    responses=answers(PropsAnswer) | errors(503),
)
async def props(request: Request) -> Any:
    state = state_of(request)
    engine, config = state.engine, state.config
    defaults = GenerationParams(sampling=config.sampling, max_tokens=config.n_predict)
    settings = settings_json(defaults, engine.draft_sources)
    media: Collection[str] = () if engine.media is None else engine.media.modalities
    settings["seed"] = -1 if config.seed is None else config.seed
    shown: PropsAnswer = {
        "default_generation_settings": {"params": settings, "n_ctx": engine.n_ctx},
        "total_slots": engine.config.parallel,
        "model_alias": state.model_name,
        "model_path": str(engine.config.model or packaged_model_path()),
        "modalities": {"vision": Modality.VISION in media, "video": False, "audio": Modality.AUDIO in media},
        "media_marker": state.media_marker,
        "endpoint_slots": config.slots,
        "endpoint_props": False,
        "endpoint_metrics": config.metrics,
        "ui": config.ui,
        "chat_template": state.chat_template.source,
        "chats": state.chats,
        "chat_template_caps": await asyncio.to_thread(caps_of, state.chat_template),
        "bos_token": special_text(engine.model, "bos"),
        "eos_token": special_text(engine.model, "eos"),
        "build_info": f"pyllmcancel-{__version__}",
        "is_sleeping": False,
        "batch_invariant": engine.varies_because is None,
    }
    return shown


def caps_of(template: ChatTemplate) -> dict[str, bool]:
    """Return the capabilities of a template; none if it cannot be compiled."""
    try:
        return dict(template.caps)
    except Error:
        return {}


@router.post("/props", summary="Refused: the properties cannot be changed", **REFUSED)
async def change_props() -> NoReturn:
    raise unsupported("the server's properties cannot be changed while it runs")


@router.get("/slots", summary="The slots' present work", responses=answers(list[SlotAnswer]) | errors(501, 503))
async def slots(
    request: Request, fail_on_no_slot: str = Query("", description="With any value, answer 503 if every slot is taken.")
) -> Any:
    state = state_of(request)
    if not state.config.slots:
        raise unsupported("this server was started with --no-slots")
    engine, exchange = state.engine, exchange_of(request.scope)
    own = None if exchange.is_admin else exchange.owner  # other owners' slots look idle
    running = [
        choice for one in engine.registry.requests(own) for choice in tuple(one.choices) if choice.seq is not None
    ]
    # A slot is one of the places for running requests. It has no memory of its own: any slot can use what any other
    # computed.
    del running[engine.config.parallel :]
    if fail_on_no_slot and len(running) == engine.config.parallel:
        raise ApiError(503, "no slot available", "unavailable_error", code="no_slot_available")
    shown = [busy_slot(number, engine, choice) for number, choice in enumerate(running)]
    return shown + [idle_slot(number, engine) for number in range(len(running), engine.config.parallel)]


@router.get(
    "/lora-adapters", summary="The LoRA adapters, and their scales", responses=answers(list[LoraAdapter]) | errors(503)
)
async def lora_adapters(request: Request) -> Any:
    engine = state_of(request).engine
    return [lora_adapter(number, adapter, engine.model) for number, adapter in enumerate(engine.adapters.loaded())]


def lora_adapter(number: int, adapter: LoadedAdapter, model: Model) -> LoraAdapter:
    facts = adapter.facts
    shown: LoraAdapter = {
        "id": number,
        "path": str(adapter.path),
        "scale": adapter.scale,
        "task_name": facts.task_name,
        "prompt_prefix": facts.prompt_prefix,
    }
    if facts.invocation_tokens:
        shown["alora_invocation_string"] = text_of(model, facts.invocation_tokens)
        shown["alora_invocation_tokens"] = list(facts.invocation_tokens)
    return shown


@router.post(
    "/lora-adapters",
    summary="Set the scales of LoRA adapters for later requests",
    responses=answers(Success) | errors(403),
)
async def change_lora_adapters(incoming: Annotated[Incoming[LoraScalesBody], reads(LoraScalesBody)]) -> Any:
    """Requests that are running or waiting keep their scales. Adapters that are not named get the scale 0."""
    if not may_see_all(incoming.http):
        message = "the scales are for requests of several owners: setting them needs the key of --admin-api-key"
        raise ApiError(403, message, "permission_error", code="admin_only")
    incoming.state.engine.adapters.set_scales(pairs(incoming.body.scales))
    return Success(success=True)


def idle_slot(number: int, engine: Engine) -> SlotAnswer:
    return {"id": number, "n_ctx": engine.n_ctx, "speculative": bool(engine.draft_sources), "is_processing": False}


def busy_slot(number: int, engine: Engine, choice: Choice) -> SlotAnswer:
    """Return the state of a busy slot. Counts may be a step old: the engine's thread goes on meanwhile."""
    request, n_decoded = choice.request, len(choice.generated)
    params = request.params
    next_token: NextToken = {
        "has_next_token": choice.finish_reason is None,
        "has_new_line": choice.has_line_feed,
        "n_remain": -1 if params.max_tokens is None else params.max_tokens - n_decoded,
        "n_decoded": n_decoded,
    }
    done = min(choice.n_committed, len(choice.prompt))
    return {
        **idle_slot(number, engine),
        "is_processing": True,
        "request_id": request.id,
        "n_prompt_tokens": len(choice.prompt),
        "n_prompt_tokens_processed": max(0, done - choice.n_cached),
        "n_prompt_tokens_cache": choice.n_cached,
        "params": settings_json(params, engine.draft_sources),
        "next_token": [next_token],
    }
