"""The lines that a server shows when it is ready: an address to open, and a command to try."""

from __future__ import annotations

import json
import shlex
import socket
from collections.abc import Sequence
from typing import Any

from pyllmcancel.pooling import Pooling
from pyllmcancel.server.config import ServerConfig
from pyllmcancel.server.http.listening import url_at
from pyllmcancel.server.state import ServerState

LOCAL = ("127.0.0.1", "::1")
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
# README.md has the same body.
CHAT = {"messages": [{"role": "user", "content": "Tell me a long story."}], "stream": True}
# As long as the packaged model's context allows, and several answers: there is time to interrupt them on fast machines,
# too.
LONG = {"prompt": "def hello_world():\n", "max_tokens": 2000, "n": 8, "ignore_eos": True, "stream": True}
TEXT = {"input": "hello"}
# The path and the body to try, by what the model makes of a text.
Example = tuple[str, dict[str, Any]]
TO_TRY: dict[Pooling | None, Example] = {
    None: ("/v1/completions", LONG),
    **dict.fromkeys((Pooling.MEAN, Pooling.CLS, Pooling.LAST), ("/v1/embeddings", TEXT)),
    Pooling.NONE: ("/embeddings", TEXT),
    Pooling.RANK: ("/v1/rerank", {"query": "hello", "documents": ["hello world", "goodbye"]}),
}


def example_of(state: ServerState) -> Example:
    """Return the path and the body to try. The packaged model chats, too, but its answers would be short."""
    engine = state.engine
    is_chat = state.chats and engine.config.model is not None
    return ("/v1/chat/completions", CHAT) if is_chat else TO_TRY[engine.pooling]


def first_steps(
    listeners: Sequence[socket.socket], config: ServerConfig, *, secure: bool, example: Example
) -> list[str]:
    """Return lines that can be pasted. A key is never shown: `KEY` stands for it."""
    url = url_from_here(listeners, secure=secure)
    key = "KEY" if config.api_keys or config.admin_api_keys else ""
    curl = shlex.join(curl_command(url, key, secure=secure, example=example))
    top = shlex.join(["pyllmcancel", "top", "--url", url, *(("--api-key", key) if key else ())])
    page = [f"open {url}/ in a browser"] if config.ui else []
    lines = [", or ".join([*page, f"run: {top}"]), f"try: {curl}"]
    if "stream" in example[1]:
        lines[1] += "   and interrupt it with Ctrl-C: this log says when computing stopped"
    return lines


def curl_command(url: str, key: str, *, secure: bool, example: Example) -> list[str]:
    """Return a command that streams a long answer or, for a model that pools, asks for an embedding or a ranking."""
    path, body = example
    # Hardly any certificate names this machine's addresses.
    options = ["-Nk" if secure else "-N", *(("-H", f"Authorization: Bearer {key}") if key else ())]
    kind = ("-H", "Content-Type: application/json")
    return ["curl", *options, *kind, "-d", compact(body), f"{url}{path}"]


def url_from_here(listeners: Sequence[socket.socket], *, secure: bool) -> str:
    """Return the server's address as seen from this machine: a loopback address if the server listens there."""
    urls = []
    for listener in listeners:
        host, port = listener.getsockname()[:2]
        near = EVERYWHERE.get(host, host)
        urls.append((near not in LOCAL, url_at(near, port, secure=secure)))
    return min(urls, key=lambda found: found[0])[1]


def compact(body: dict[str, Any]) -> str:
    return json.dumps(body, separators=(",", ":"))
