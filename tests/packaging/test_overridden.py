"""The overridden parts of the web stack are unchanged since they were overridden; a new version has to be read first.

When a hash differs: read what has changed, adapt `pyllmcancel.server` to it, and write down the new hash and bounds.
"""

from __future__ import annotations

import asyncio.selector_events
import hashlib
import inspect
import re
from collections.abc import Callable
from importlib.metadata import requires, version
from typing import Any

import fastapi.dependencies.utils
import fastapi.routing
import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

OVERRIDDEN: dict[Callable[..., Any], str] = {
    H11Protocol.__init__: "ad1ed8e837b2db8d",
    H11Protocol.connection_made: "6efb565ff3d36b91",
    H11Protocol.connection_lost: "dbb688fa2b386000",
    H11Protocol.data_received: "e03b145518ca44aa",
    H11Protocol.handle_events: "e63a9d1492e3efe7",
    H11Protocol.send_400_response: "56937b748fc59d92",
    H11Protocol.on_response_complete: "1fbb8f48c6a1afc4",
    H11Protocol.shutdown: "aaa6d607648bad7d",
    RequestResponseCycle.receive: "2d138e9944fff369",
    RequestResponseCycle.send: "76b4bcb0998bed0e",
    uvicorn.Server.startup: "2aa1d70a244bfcf2",
    uvicorn.Server.shutdown: "9b33c50562992b1e",
    # Waits for its tasks, of which the drain is one.
    uvicorn.Server._wait_tasks_to_complete: "17209be1e991445d",
    uvicorn.Server.handle_exit: "553276efa26e09ea",
    # Asks for the body's bytes, then for its JSON, then validates what is a value already.
    fastapi.routing.APIRoute.get_route_handler: "b0412ff714c76e76",
    fastapi.routing.get_request_handler: "d959336b716257f3",
    fastapi.dependencies.utils.request_body_to_args: "8ae56248184ce989",
    # Its cache is filled before.
    fastapi.routing._extract_endpoint_context: "c037939143236aaa",
}


@pytest.mark.parametrize("function", OVERRIDDEN, ids=lambda function: function.__qualname__)
def test_what_is_overridden_is_what_was_read(function: Callable[..., Any]) -> None:
    found = hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]
    package = function.__module__.partition(".")[0]
    assert found == OVERRIDDEN[function], f"{package} {version(package)} has changed {function.__qualname__}: read it"


@pytest.mark.parametrize("package", ["fastapi", "h11", "uvicorn"])
def test_versions_whose_internals_are_used_have_an_upper_bound_that_holds(package: str) -> None:
    stated = [Requirement(text) for text in requires("pyllmcancel") or () if re.match(rf"{package}\b", text)]
    (bound,) = (one for one in stated if one.marker is None)
    assert any(one.operator == "<" for one in bound.specifier)
    assert bound.specifier.contains(version(package))


def test_asyncio_asks_a_listening_socket_itself_for_connections() -> None:
    """`Listener.accept` is called by it, and its `BlockingIOError` ends a turn."""
    source = inspect.getsource(asyncio.selector_events.BaseSelectorEventLoop._accept_connection)
    assert "sock.accept()" in source
    assert "BlockingIOError" in source
