"""Make docs/http.md of the description that a server gives of itself: `python tools/describe_http.py`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pyllmcancel.config import EngineConfig
from pyllmcancel.server.app import create_app
from pyllmcancel.server.config import ServerConfig
from pyllmcancel.server.openapi.description import ERRORS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "http.md"
HEAD = """\
# HTTP endpoints

<!-- Made by tools/describe_http.py of the server's own description: change the routes. -->

A running server describes every endpoint on its page `/docs`, with the schemas of bodies and answers and examples that
run, and in `/openapi.json` for programs. This page is the list, with the parameters of queries in brackets. Names
and meanings of fields are on the pages that each section names.
"""
PAGES = {
    "OpenAI": "[Fields](fields.md), [chats, tools, reasoning](chats.md), [Responses](responses.md).",
    "Batches": "[Batches](batches.md).",
    "Rankings": "[Embeddings and rankings](rankings.md), with the other paths of `/v1/rerank`.",
    "Anthropic": "[Messages](messages.md).",
    "llama-server": "[The dialect](llama-server-dialect.md), with the paths that have no version number.",
    "Requests": "[Cancelling](cancelling.md), [the feed](events.md).",
    "Streams": "[Streams that can be taken up again](streams.md).",
    "Models": "[Models](hub.md).",
    "Health": "[Deploying](deploying.md), [metrics](metrics.md).",
}


class Endpoint(NamedTuple):
    tag: str
    method: str
    path: str
    operation: dict[str, Any]


def page() -> str:
    """The whole page."""
    description = create_app(ServerConfig(engine=EngineConfig())).openapi()
    endpoints = [
        Endpoint(operation["tags"][0], method.upper(), path, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]
    sections = "".join(section(tag, [one for one in endpoints if one.tag == tag]) for tag in PAGES)
    return HEAD + sections + parameters(endpoints) + statuses()


def section(tag: str, endpoints: list[Endpoint]) -> str:
    rows = "".join(map(row, endpoints))
    return f"\n## {tag}\n\n{PAGES[tag]}\n\n{rows}"


def row(endpoint: Endpoint) -> str:
    names = listed(queries(endpoint))
    return f"- `{endpoint.method} {endpoint.path}`: {endpoint.operation['summary']}{f' ({names})' if names else ''}\n"


def queries(endpoint: Endpoint) -> list[str]:
    return [one["name"] for one in endpoint.operation.get("parameters", ()) if one["in"] == "query"]


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def parameters(endpoints: list[Endpoint]) -> str:
    """The parameters of all endpoints, each description once."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {("Headers", "header"): {}, ("Queries", "query"): {}}
    for (_, place), texts in found.items():
        for one in (one for endpoint in endpoints for one in endpoint.operation.get("parameters", ())):
            if one["in"] == place and one.get("description") and one["name"] not in texts.get(one["description"], ()):
                texts.setdefault(one["description"], []).append(one["name"])
    parts = []
    for (title, _), texts in found.items():
        parts.append(f"\n## {title}\n\n" + "".join(f"- {listed(names)}: {text}\n" for text, names in texts.items()))
    return "".join(parts)


def statuses() -> str:
    rows = "".join(f"- {status}: {text}\n" for status, text in ERRORS.items())
    text = "[Cancelling](cancelling.md#what-a-client-is-answered) has the answers that a cancelled client gets."
    return f"\n## Statuses of errors\n\n{text}\n\n{rows}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
