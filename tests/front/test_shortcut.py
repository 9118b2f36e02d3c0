"""The way past FastAPI: only for paths that no route of the front has."""

import asyncio

import pytest
from fastapi import APIRouter
from starlette.types import Receive, Scope, Send

from pyllmcancel.front.app import Shortcut

router = APIRouter()


@router.get("/v1/models")
@router.get("/v1/requests/{request_id:path}")
@router.get("/page/{path:path}")
def answer() -> None: ...


def way(scope: Scope) -> str:
    taken = []

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        taken.append("FastAPI")

    async def models(_scope: Scope, _receive: Receive, _send: Send) -> None:
        taken.append("a model")

    async def nothing(*_: object) -> None: ...

    asyncio.run(Shortcut(app, models, router.routes)(scope, nothing, nothing))  # type: ignore[arg-type]
    return taken[0]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/", "/v1/requests/a/b", "/page/a.js", "/page"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_own_paths_go_to_their_routes_whatever_the_method(path: str, method: str) -> None:
    assert way({"type": "http", "path": path, "method": method}) == "FastAPI"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/", "/v1", "/v1/modelsx", "/apply-template"])
def test_other_paths_go_to_a_model(path: str) -> None:
    assert way({"type": "http", "path": path, "method": "POST"}) == "a model"


def test_what_is_not_http_is_left_to_fastapi() -> None:
    assert way({"type": "lifespan"}) == "FastAPI"
