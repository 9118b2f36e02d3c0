"""Exception handlers: every error of a request is answered in the shape of its API."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import Error, RequestCancelled
from pyllmcancel.server.errors.responses import CLIENT_CLOSED_REQUEST, ApiError, api_error
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.http.workers import ClientLeft

logger = logging.getLogger("pyllmcancel.server")

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
TOO_DEEP = "the body is nested too deeply"
MAX_PART, MAX_MESSAGE = 100, 1_000  # characters that are repeated to the client
JSON_TYPE = re.compile(r"\s*application/(?:[^/;\s]+\+)?json\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)
# In the place of an error: names of alternatives, by pydantic and ours.
LABEL = re.compile(r"str|constrained-\w+|.*[\[<].*", re.DOTALL)
PYTHON = re.compile(r"^Value error, | or (instance of \w+|object to extract fields from)")
NOT_JSON_TYPE = "the body must be a JSON object, sent with Content-Type: application/json"


def add_error_handlers(app: FastAPI) -> None:
    for kind in (ApiError, ClientLeft, Error, Exception):
        app.add_exception_handler(kind, on_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_error)


async def on_error(request: Request, error: Exception) -> Response:
    match error:
        case ClientLeft() | RequestCancelled(reason=CancelReason.DISCONNECT):
            exchange_of(request.scope).client_gone = True
            return Response(status_code=CLIENT_CLOSED_REQUEST)  # for the access log
    shown = api_error(error)
    if shown.status == 500:
        request_id = exchange_of(request.scope).request_id
        logger.error("request %s failed", request_id, exc_info=error, extra={"request_id": request_id})
    return shown.response_to(request.scope)


async def on_validation_error(request: Request, error: Exception) -> JSONResponse:
    """Report pydantic's findings as one error: the first parameter at fault, in words."""
    assert isinstance(error, RequestValidationError)
    # FastAPI puts the part of the request first.
    return validation_error([{**one, "loc": one["loc"][1:]} for one in error.errors()]).response_to(request.scope)


def invalid_body(error: ValidationError) -> ApiError:
    """Report the first error of a JSON body."""
    return validation_error(error.errors(include_url=False, include_input=False))


def validation_error(findings: Sequence[Any]) -> ApiError:
    """Report the first finding. Of the alternatives of one value that one is meant which goes furthest."""
    loc = findings[0]["loc"]
    n_before = next((place for place, part in enumerate(loc) if LABEL.fullmatch(str(part))), len(loc))
    alternatives = [one for one in findings if one["loc"][:n_before] == loc[:n_before]]
    finding = max(alternatives, key=lambda one: (len(one["loc"]), [part for part in one["loc"] if type(part) is int]))
    is_name = finding["type"] == "extra_forbidden"
    # Truncated, because the client chose the names.
    where = [str(part)[:MAX_PART] for part in finding["loc"] if is_name or not LABEL.fullmatch(str(part))]
    param = where[0] if where else None
    shown = ".".join(where)
    match finding["type"]:
        case "json_invalid":
            return invalid_json(f"the body is not valid JSON: {finding['ctx']['error']}")
        case "model_attributes_type" if not where:
            return ApiError(400, NOT_JSON_TYPE, code="invalid_request")
        case "extra_forbidden":
            return ApiError(400, f"unsupported field: {shown}", param=param, code="unsupported_field")
        case _:
            message = f"{shown or 'body'}: {PYTHON.sub('', finding['msg'])}"[:MAX_MESSAGE]
            return ApiError(400, message, param=param, code="invalid_request")


async def on_http_error(request: Request, error: Exception) -> JSONResponse:
    """Report Starlette's own errors: unknown path, wrong method."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            shown = ApiError(404, f"there is no {what}", code="unknown_url")
        case HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = {"Allow": ", ".join(allowed_methods(request))}
            message = f"there is no {what}; see the header Allow"
            shown = ApiError(405, message, code="method_not_allowed", extra_headers=allowed)
        case status:
            shown = ApiError(status, str(error.detail), code="http_error", extra_headers=dict(error.headers or {}))
    return shown.response_to(request.scope)


def allowed_methods(request: Request) -> list[str]:
    """Return all methods of this path, of which the router names those of one route only."""
    routes = request.app.routes
    return [
        method
        for method in METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]


def invalid_json(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_json")


def is_json(request: Request) -> bool:
    """Return whether the body is declared as JSON, by FastAPI's rules."""
    return JSON_TYPE.fullmatch(request.headers.get("content-type", "")) is not None
