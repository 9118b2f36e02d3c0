"""Fields of bodies that have no effect here: ``--unknown-fields`` decides whether they are refused, reported, or
ignored.

Unknown fields are taken out of a client's body, so that they reach neither a template nor a grammar. A field that would
have changed the answer is refused in any case; see `REFUSED`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel
from starlette.types import Scope

from pyllmcancel.pausing import Pause
from pyllmcancel.server.config import UnknownFields
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.wire.fields import RequestBody
from pyllmcancel.shares import Remembered

logger = logging.getLogger("pyllmcancel.server")

HEADER = "X-Ignored-Fields"
MAX_NAMES = 32  # names reported for one request
LONGEST_NAME = 64  # characters
MAX_LOGGED_PAIRS = 4_096  # pairs of a client and a field that were logged
# Neither a comma, which separates names, nor anything that a header or a log cannot hold.
SAFE = "._-$@~[]"
PAUSE_AFTER = 1_000  # models
PLAIN = (int, str, float, bool, type(None))

# Fields outside of OpenAI's two endpoints, or of this server, that would change the answer: a constraint, a modality,
# another way to search. The forms of answers are refused in dialects that have other names for them.
CHANGING = (
    "audio bad_words chat_template ebnf force_words functions grammar guided_choice guided_grammar guided_json"
    " guided_regex guided_whitespace_pattern image images json_schema logits_processors lora_request moderation"
    " multimodal_data negative_prompt output_config.format output_format prompt_embeds prompt_logprobs regex"
    " response_schema structural_tag structured_outputs use_beam_search web_search_options"
)
# Each with the values, besides null and empty ones, that ask for nothing.
REFUSED: Mapping[str, tuple[Any, ...]] = dict.fromkeys(CHANGING.split(), ()) | {
    "beam_width": (1,),
    "format": ("text",),
    "function_call": ("none", "auto"),
    "length_penalty": (1,),
    "num_beams": (1,),
    "response_format": ({"type": "text"},),
    "text.format": ({"type": "text"},),
}


class IgnoredLog:
    """Logs one line for each client and field. Used in the event loop only."""

    def __init__(self) -> None:
        self._logged = Remembered[str, bool](MAX_LOGGED_PAIRS)

    def log(self, scope: Scope, names: Iterable[str]) -> None:
        exchange = exchange_of(scope)
        client = exchange.owner or (scope.get("client") or ("a client",))[0]
        for name in names:
            known = self._logged.pop(client, name)
            self._logged.put(client, name, value=True)  # the youngest
            if not known:
                facts = {"request_id": exchange.request_id, "client": client, "field": name}
                logger.warning("%s sends %s, which has no effect here", client, name, extra=facts)


def take_unknown(body: RequestBody, policy: UnknownFields, pause: Pause) -> Collection[str]:
    """Take unknown fields out of `body`; ApiError if one would change the answer, or is refused. Return their names,
    which are safe in a header and in a log; `body.ignore` adds further ones.
    """
    ignored: dict[str, None] = {}  # each once

    def ignore(name: str) -> None:
        if policy == "refuse":
            raise unsupported(name)
        if policy == "warn" and len(ignored) < MAX_NAMES:
            ignored[spelled(name)] = None

    body._ignore = ignore
    refused = {**REFUSED, **body.refused_fields}
    for number, (model, path) in enumerate(models_in(body, ())):
        if number % PAUSE_AFTER == 0:
            pause()
        if not isinstance(model, RequestBody) or not model.__pydantic_extra__:
            continue
        for name, value in model.__pydantic_extra__.items():
            inner = value.get("format") if isinstance(value, dict) else None
            for asked, given in ((name, value), (f"{name}.format", inner)) if model is body else ():
                if asked in refused and not asks_for_nothing(given, refused[asked]):
                    raise unsupported(asked)
            if value is not None and not (model is body and name in refused):
                ignore(".".join((*path, name)))
        model.__pydantic_extra__.clear()
    return ignored


def models_in(model: BaseModel, path: tuple[str, ...]) -> Iterator[tuple[BaseModel, tuple[str, ...]]]:
    """Iterate over `model` and all models inside it, with the names of the fields that lead there."""
    yield model, path
    for name, value in model.__dict__.items():
        for one in value if isinstance(value, list) else (value,):
            if type(one) not in PLAIN and isinstance(one, BaseModel):
                yield from models_in(one, (*path, name.rstrip("_")))


def asks_for_nothing(value: Any, others: tuple[Any, ...]) -> bool:
    return value is None or value is False or value in ("", [], {}) or value in others


def unsupported(path: str) -> ApiError:
    return ApiError(
        400, f"unsupported field: {path[:100]}", param=path.partition(".")[0][:100], code="unsupported_field"
    )


def spelled(name: str) -> str:
    return quote(name, safe=SAFE)[:LONGEST_NAME]
