"""Files of batches, for tests: their lines, the forms in which they are sent, and their results."""

import json
from collections.abc import Iterable
from typing import Any

import httpx

COMPLETIONS = "/v1/completions"
FIELDS: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hello", "max_tokens": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3},
    "/v1/responses": {"input": "hello", "max_output_tokens": 3},
    "/v1/embeddings": {"input": "hello"},
}


def line(name: object, url: str = COMPLETIONS, /, **fields: Any) -> dict[str, Any]:
    body = FIELDS[url] | {"temperature": 0, "ignore_eos": True} | fields
    return {"custom_id": str(name), "method": "POST", "url": url, "body": body}


def jsonl(lines: Iterable[Any]) -> bytes:
    """Return a file of these lines; bytes are taken as they are."""
    return b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines)


def form(content: bytes, **fields: Any) -> dict[str, Any]:
    """Return the content and the headers of an upload."""
    parts = {"file": ("in.jsonl", content)}
    request = httpx.Request("POST", "http://x", data={"purpose": "batch"} | fields, files=parts)
    return {"content": request.read(), "headers": {"content-type": request.headers["content-type"]}}


def results_in(content: bytes | str) -> dict[str, dict[str, Any]]:
    """Return the lines of a file of results by their names, of which each is there once."""
    found = [json.loads(one) for one in content.splitlines()]
    by_name = {one["custom_id"]: one for one in found}
    assert len(by_name) == len(found)
    return by_name
