"""The OpenAPI page: descriptions of the routes' answers, and facts that FastAPI cannot derive."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter

from pyllmcancel import __version__
from pyllmcancel.server.bodies import readings_of
from pyllmcancel.server.config import ServerConfig
from pyllmcancel.server.errors.shapes import ANTHROPIC, LLAMA, OPENAI, ErrorShape, shape_of_path
from pyllmcancel.server.http.api_keys import PUBLIC_PATHS
from pyllmcancel.server.http.forms import FORM
from pyllmcancel.server.http.request_context import SANE_ID
from pyllmcancel.server.limits import MAX_SESSION_ID
from pyllmcancel.server.openapi.examples import EXAMPLES
from pyllmcancel.server.page import documentation_url
from pyllmcancel.server.wire.fields import RequestBody

Responses = dict[int | str, dict[str, Any]]
JSON = "application/json"

DESCRIPTION = """\
An OpenAI-compatible server on llama.cpp in which a cancel is exact, immediate and free of collateral damage.

Close the connection, and the computation stops: in the queue, in prefill, while streaming. Or cancel by id, by session
(all its live requests, and its descendants'), by a newer request of the same `X-Supersede` key, or with a deadline.
Every answer carries `X-Request-Id`.
"""

ERRORS = {
    400: "Invalid request; `param` names the field",
    401: "Missing or wrong API key",
    403: "Only for an administrator's key, or requested by a page of another origin",
    404: "Unknown",
    409: "Several owners have a request or session of this name",
    413: "The body is too long",
    415: "The body is not sent as the type that this endpoint reads",
    421: "The server is not known by the name in `Host`",
    429: "Too many requests are waiting; see Retry-After",
    499: "The request was cancelled: explicit, or superseded by a newer one of its key",
    500: "The computation failed, or the server has a defect",
    501: "Not supported by this model, or switched off",
    503: "The model is loading, or the server is shutting down; see Retry-After",
    504: "The deadline has passed",
    507: "There is no room to store the response",
}
# The errors that any request with a body may end with, and those of any request that generates.
BODY_ERRORS = (400, 413, 415, 503)
GENERATION_ERRORS = (*BODY_ERRORS, 404, 429, 499, 500, 504)

NAME = {"type": "string", "minLength": 1, "maxLength": MAX_SESSION_ID}
REQUEST_ID = {"type": "string", "pattern": f"^{SANE_ID.pattern}$"}
REQUEST_HEADERS = tuple(
    {"name": name, "in": "header", "description": text, "schema": REQUEST_ID if name == "X-Request-Id" else NAME}
    for name, text in {
        "X-Request-Id": "Id of this request, by which it can be cancelled; the server makes one if it is missing.",
        "X-Session-Id": (
            "Session: the group that the request belongs to, which can be listed and cancelled as a whole."
        ),
        "X-Parent-Session-Id": ("The session whose child this one is; a cancel of the parent reaches all descendants."),
        "X-Supersede": "A key under which at most one request lives: the newest cancels the older one.",
        "X-Priority": "An integer, or `idle`; see the field `priority`, before which it counts.",
        "X-Conversation-Id": (
            "The stream goes on when its client leaves, and can be taken up by `GET /v1/stream/{name}`. The newest"
            " stream of a conversation cancels the older one."
        ),
    }.items()
)


# The models of answers, by the numbers that stand for them until the page is made. FastAPI would read each model again
# for every route that names it, also that of errors, which took most of the server's start.
MODELS: list[Any] = []
# Models that FastAPI does not know: bodies, events of streams, and errors, of which it takes all for OpenAI's.
FURTHER: dict[type, Literal["validation", "serialization"]] = {
    shape.answer: "serialization" for shape in (OPENAI, LLAMA, ANTHROPIC)
}


def errors(*statuses: int) -> Responses:
    """The `responses` of a route, or router, that may answer with these errors, in the shape of its path."""
    return {status: {"description": ERRORS[status]} for status in statuses}


def answer_of(model: Any, description: str) -> dict[str, Any]:
    """Return the description of an answer of this model, for the `responses` of a route."""
    if model not in MODELS:
        MODELS.append(model)
    schema = {"model": MODELS.index(model)}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def asks(body_type: type[RequestBody]) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that reads a body of this type itself, not by `reads`."""
    FURTHER[body_type] = "validation"
    return body_of(body_type)


def body_of(body_type: type[RequestBody], media_type: str = JSON) -> dict[str, Any]:
    content = {media_type: {"schema": _reference(body_type)}}
    return {"requestBody": {"content": content, "required": True}}


def answers(model: Any, *events: type, says_done: bool = True, shape: ErrorShape = OPENAI) -> Responses:
    """Return the `responses` of a route with this answer; with `events`, also with a stream of them."""
    described = answer_of(model, "The answer")
    if events:
        # As in OpenAPI 3.2, and as FastAPI writes it: the schema of each event, not of the stream as a whole.
        parts = [_event_reference(part) for part in (*events, shape.answer)]
        texts: list[dict[str, Any]] = [
            {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": parts}}
        ]
        if says_done:
            texts.append({"const": "[DONE]", "description": "The end of an answer that is complete."})
        event_schema = {"type": "object", "properties": {"data": {"anyOf": texts}}, "required": ["data"]}
        described["content"]["text/event-stream"] = {"itemSchema": event_schema}
    return {200: described}


def stream_of(*events: type) -> Responses:
    """Return the `responses` of a route that answers with events of these models, named by their types."""
    parts = [_event_reference(part) for part in events]
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": parts}}
    texts = {name: {"type": "string"} for name in ("id", "event")}
    schema = {"type": "object", "properties": texts | {"data": data}, "required": ["id", "event", "data"]}
    return {200: {"description": "The stream", "content": {"text/event-stream": {"itemSchema": schema}}}}


def describe(app: FastAPI, config: ServerConfig) -> None:
    """Make `app` answer ``/openapi.json``, which is written once: it takes a quarter of a second, with the GIL."""

    @cache
    def text() -> bytes:
        return bytes(JSONResponse(whole_page(app, config)).body)

    app.openapi = lambda: json.loads(text())  # type: ignore[method-assign]
    app.state.openapi_text = text


def whole_page(app: FastAPI, config: ServerConfig) -> dict[str, Any]:
    page = get_openapi(title="pyllmcancel", version=__version__, description=DESCRIPTION, routes=app.routes)
    schemas = page["components"]["schemas"]
    readings = readings_of(app.routes)
    bodies = dict.fromkeys(one.body_type for one in readings.values())
    made, further = TypeAdapter.json_schemas(
        [
            *((model, mode, TypeAdapter(model)) for model, mode in FURTHER.items()),
            *((model, "validation", TypeAdapter(model)) for model in bodies),
            *((number, "serialization", TypeAdapter(model)) for number, model in enumerate(MODELS)),
        ],
        ref_template="#/components/schemas/{model}",
    )
    schemas.update(further["$defs"])
    of_answers = [made[number, "serialization"] for number in range(len(MODELS))]
    keyed = config.api_keys or config.worker_key  # a front, which shows its worker's page, may need keys
    for path, operations in page["paths"].items():
        for method, operation in operations.items():
            reading = readings.get(path) if method == "post" else None
            if reading is not None:
                operation.update(body_of(reading.body_type, FORM if reading.is_form else JSON))
                for status in GENERATION_ERRORS if reading.generates else BODY_ERRORS:
                    operation["responses"].setdefault(str(status), error_response(path, status))
            _describe_operation(path, method, operation, of_answers)
            if keyed and path not in PUBLIC_PATHS:
                operation["responses"]["401"] = error_response(path, 401)
            elif keyed:
                operation["security"] = []
    # This is FastAPI's own shape of a validation error; ours is a 400 like any other.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    if keyed:
        page["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
        }
        page["security"] = [{"bearer": []}, {"x-api-key": []}, *([] if config.api_keys else [{}])]
    if (address := documentation_url()) is not None:
        page["externalDocs"] = {"description": "Documentation: tutorial, recipes, reference", "url": address}
    return page


def _describe_operation(path: str, method: str, operation: dict[str, Any], of_answers: list[dict[str, Any]]) -> None:
    operation["responses"].pop("422", None)
    for status, answer in operation["responses"].items():
        content = answer.get("content", {}).get("application/json", {})
        if (number := content.get("schema", {}).get("model")) is not None:
            content["schema"] = of_answers[number]
        elif int(status) in ERRORS and not content.get("schema"):
            answer.update(error_response(path, int(status)))
    # On every path the id is checked first, then the host name and the page's origin.
    for status in (400, 403, 421):
        operation["responses"].setdefault(str(status), error_response(path, status))
    if method == "post":
        operation["responses"].setdefault("413", error_response(path, 413))
    if "499" in operation["responses"]:
        operation.setdefault("parameters", []).extend(REQUEST_HEADERS)
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body is not None and path in EXAMPLES:
        body["examples"] = EXAMPLES[path]


def error_response(path: str, status: int) -> dict[str, Any]:
    content = {"application/json": {"schema": _reference(shape_of_path(path).answer)}}
    return {"description": ERRORS[status], "content": content}


def _event_reference(event: type) -> dict[str, str]:
    FURTHER.setdefault(event, "serialization")
    return _reference(event)


def _reference(model: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
