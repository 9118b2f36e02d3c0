"""The OpenAPI page tells the truth: its examples run, and answers are what it says they are."""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import pytest
from fastapi.routing import APIRoute

from pyllmcancel import __version__
from pyllmcancel.config import EngineConfig
from pyllmcancel.server.app import all_routes, create_app
from pyllmcancel.server.config import ServerConfig
from pyllmcancel.server.errors.shapes import shape_of_path
from pyllmcancel.server.openapi.examples import EXAMPLES
from tests.support.endpoints import body_type_of
from tests.support.http_asgi import Exchange
from tests.support.http_world import CHAT, COMPLETIONS, World, open_world, unnamed
from tests.support.marks import mostly_long

CHUNKS = {COMPLETIONS: "CompletionChunk", CHAT: "ChatCompletionChunk", "/v1/responses": "ResponseEvent"}
MESSAGES = "/v1/messages"


@cache
def page_of(**options: Any) -> dict[str, Any]:
    return create_app(ServerConfig(engine=EngineConfig(), **options)).openapi()


def operations(page: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in page["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def check(page: dict[str, Any], schema: dict[str, Any], answer: Any) -> None:
    jsonschema.validate(answer, schema | {"components": page["components"]})


def check_exchange(path: str, method: str, exchange: Exchange) -> None:
    """The status is described, and so is the body."""
    page = page_of()
    described = page["paths"][path][method]["responses"][str(exchange.status)]["content"]
    if exchange.headers["content-type"].startswith("text/event-stream"):
        assert "text/event-stream" in described
        schema = {"$ref": f"#/components/schemas/{CHUNKS.get(path, 'ResponseEvent')}"}
        if path == MESSAGES:
            schema = described["text/event-stream"]["itemSchema"]["properties"]["data"]["anyOf"][0]["contentSchema"]
        for event in exchange.json_events():
            check(page, schema, event)
    else:
        check(page, described["application/json"]["schema"], exchange.json())


@pytest.mark.parametrize(
    ("path", "name"),
    mostly_long(
        [(path, name) for path, examples in EXAMPLES.items() for name in examples],
        *((COMPLETIONS, name) for name in EXAMPLES[COMPLETIONS]),
    ),
)
async def test_every_example_of_the_page_runs_and_is_answered_as_described(world: World, path: str, name: str) -> None:
    world.model.special_tokens = world.model.special_tokens | {"fim_pre": 1, "fim_suf": 2, "fim_mid": 3}
    body = page_of()["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    check_exchange(path, "post", await world.served(path, body["examples"][name]["value"]))


@pytest.mark.parametrize("path", mostly_long([COMPLETIONS, CHAT, MESSAGES, "/completion"], COMPLETIONS))
async def test_refusals_are_answered_as_described(path: str) -> None:
    async with open_world(max_body=100, strict_model=True) as world:
        asked: dict[str, Any] = {"prompt": "x"}
        if path in (CHAT, MESSAGES):
            asked = {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
        for body, headers, status in (
            ({}, {}, 400),
            (asked | {"model": "unknown"}, {}, 404),
            ({"prompt": "x" * 100}, {}, 413),
            (asked, {"content-type": "text/plain"}, 415),
        ):
            exchange = await world.post(path, body, headers=headers)
            assert exchange.status == status
            check_exchange(path, "post", exchange)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, MESSAGES])
async def test_cancelled_answers_are_as_described(world: World, path: str) -> None:
    world.hold()
    body = EXAMPLES[path]["plain"]["value"]
    exchange = world.begin("POST", path, body, headers={"x-request-id": "mine"})
    await world.held()
    report = await world.post("/v1/requests/mine/cancel")
    check_exchange("/v1/requests/{request_id}/cancel", "post", report)
    await exchange.end()
    assert exchange.status == 499
    check_exchange(path, "post", exchange)


async def test_what_is_shown_of_requests_steps_and_the_server_is_as_described() -> None:
    async with open_world(parallel=1) as world:
        await world.complete(max_tokens=2, headers={"x-request-id": "ended"}).end()
        await world.running_stream("running")
        await world.submitted("waits", headers={"x-session-id": "s"})
        for described, queries in (
            ("/health", [""]),
            ("/v1/models", [""]),
            ("/v1/models/{model}", ["fake-model", "other"]),
            ("/v1/requests", ["", "?status=asleep"]),
            ("/v1/requests/{request_id}", ["ended", "unknown"]),
            ("/v1/sessions", [""]),
            ("/v1/sessions/{session_id}", ["s", "unknown"]),
            ("/v1/steps", [""]),
            ("/v1/events", ["?types=x"]),
        ):
            for query in queries:
                check_exchange(described, "get", await world.get(described.partition("{")[0] + query))
        for path, described in (
            ("ended/cancel", "requests/{request_id}"),
            ("running/cancel?wait=false", "requests/{request_id}"),
            ("later/cancel?hold=1", "requests/{request_id}"),
            ("cancel?wait=false&hold=1", "requests"),
            ("s/cancel?wait=false", "sessions/{session_id}"),
            ("later/cancel?hold=1", "sessions/{session_id}"),
            ("unknown/cancel", "sessions/{session_id}"),
        ):
            body = {"request_ids": ["ended", "running", "later"]} if path.startswith("cancel") else None
            exchange = await world.post(f"/v1/{described.partition('/')[0]}/{path}", body)
            check_exchange(f"/v1/{described}/cancel", "post", exchange)
        check_exchange("/v1/requests/{request_id}", "delete", await world.begin("DELETE", "/v1/requests/ended").end())


def test_every_operation_is_summarised_and_errors_have_the_shape_of_their_path_and_not_fastapis_own() -> None:
    page = page_of()
    assert page["info"]["version"] == __version__
    assert not {"HTTPValidationError", "ValidationError"} & set(page["components"]["schemas"])
    for path, method, operation in operations(page):
        assert operation["summary"], path
        named = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(operation)))
        assert named <= set(page["components"]["schemas"]), path
        assert "422" not in operation["responses"], path
        for status, answer in operation["responses"].items():
            schemas = [one.get("schema") or one["itemSchema"] for one in answer.get("content", {}).values()]
            assert schemas or status == "204", (path, method, status)
            assert not [schema for schema in schemas if set(schema) <= {"title"}], (path, method, status)
            if int(status) >= 400 and path != "/health":
                error = {"$ref": f"#/components/schemas/{shape_of_path(path).answer.__name__}"}
                assert answer["content"]["application/json"]["schema"] == error, (path, status)


def test_a_body_is_described_as_the_one_that_is_read() -> None:
    for route in all_routes(ui=True):
        assert isinstance(route, APIRoute)
        body = body_type_of(route.endpoint)
        if body is not None and route.include_in_schema:
            asked = page_of()["paths"][route.path]["post"]["requestBody"]
            assert asked["required"], route.path
            (content,) = asked["content"].values()
            assert content["schema"] == {"$ref": f"#/components/schemas/{body.__name__}"}, route.path


def test_keys_are_described_when_they_are_asked_for_and_open_paths_are_told_apart() -> None:
    assert "securitySchemes" not in page_of()["components"]
    page = page_of(api_keys=unnamed("key"))
    assert set(page["components"]["securitySchemes"]) == {"bearer", "x-api-key"}
    assert page["security"] == [{"bearer": []}, {"x-api-key": []}]
    assert "401" in page["paths"][COMPLETIONS]["post"]["responses"]
    assert page["paths"]["/health"]["get"]["security"] == []
    # The page of a front is one of its workers, which do not know whether it needs keys.
    assert page_of(worker_key="key") == page | {"security": [*page["security"], {}]}


async def test_a_page_that_is_switched_off_is_not_there_and_metrics_say_so() -> None:
    assert ["/" in page_of(ui=shown)["paths"] for shown in (False, True)] == [False, True]
    async with open_world(metrics=False, ui=False) as world:
        assert (await world.get("/")).status == 404
        told = await world.get("/metrics")
        assert told.failure == (501, "not_supported")
        assert "--metrics" in told.json()["error"]["message"]


async def test_the_page_is_written_once_and_needs_no_key() -> None:
    async with open_world(api_keys=unnamed("key"), ui=False) as world:
        for _ in range(2):
            exchange = await world.get("/openapi.json")
            assert (exchange.status, exchange.headers["content-type"]) == (200, "application/json")
            assert exchange.body == world.app.state.openapi_text()
        assert json.loads(exchange.body) == json.loads(json.dumps(world.app.openapi()))
        assert world.app.state.openapi_text.cache_info().misses == 1
