"""The terminal chat: one conversation with a server, which may be started for it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from rich.console import Console

from pyllmcancel.front.child import bound
from pyllmcancel.sse import BrokenFeedError, EventDecoder
from pyllmcancel.system import leave
from pyllmcancel.top.client import message_in, plain, read_json, reason_of

END_SECONDS = 10.0
TIMEOUT = httpx.Timeout(10.0, read=None)  # a prompt may take minutes
BASE = "This model has no chat template: it was probably trained to complete texts, and its answers may make no sense."
HELP = "Ctrl-C cancels an answer; Ctrl-C or Ctrl-D at the prompt leaves."


class ChatError(Exception):
    """There is no conversation; the message says why."""


def run(model: str, api_key: str, console: Console | None = None) -> int:
    """Talk until the reader leaves; return the exit status."""
    console = console or Console(highlight=False)
    signal.signal(signal.SIGHUP, leave)  # the terminal is closed: the server must not stay
    signal.signal(signal.SIGTERM, leave)
    try:
        with connected(model, api_key, console) as client:
            if is_base(client):
                console.print(BASE, style="yellow")
            console.print(HELP, style="dim")
            talk(client, console)
    except (ChatError, httpx.HTTPError, httpx.InvalidURL, UnicodeEncodeError) as error:
        why = error if isinstance(error, ChatError | UnicodeEncodeError) else reason_of(error)
        sys.stderr.write(f"pyllmcancel: {plain(why)}\n")
        return 1
    except KeyboardInterrupt:
        console.print()
    return 0


@contextmanager
def connected(model: str, api_key: str, console: Console) -> Iterator[httpx.Client]:
    """Connect to a server, or start one for `model` on a Unix socket; that one ends with the conversation."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    if model.startswith(("http://", "https://")):
        with httpx.Client(base_url=model.rstrip("/").removesuffix("/v1"), headers=headers, timeout=TIMEOUT) as client:
            yield client
        return
    place = TemporaryDirectory(prefix="pyllmcancel-", ignore_cleanup_errors=True)
    with place as folder, started(model, Path(folder), console) as path:
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(base_url="http://localhost", transport=transport, timeout=TIMEOUT) as client:
            yield client


@contextmanager
def started(model: str, folder: Path, console: Console) -> Iterator[Path]:
    """Start a server that ends with the block; return its socket when the model is loaded."""
    path, log, news = folder / "chat.sock", folder / "log", folder / "news"
    command = [sys.executable, "-P", "-m", "pyllmcancel", "serve", model, "--host", str(path), "--store", "off"]
    if sys.platform == "linux":
        command = bound(command)
    # As systemd does it: the server reports that it is ready to the first, and its end closes the second.
    ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ready.bind(str(news))
    alive, held = socket.socketpair()
    environment = os.environ | {"NOTIFY_SOCKET": str(news)}
    with log.open("wb") as output, held:
        # Ctrl-C must reach this process only.
        server = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True, pass_fds=[held.fileno()], env=environment
        )
    with ready, alive, server:
        try:
            with console.status("loading"):
                wait_until_loaded(ready, alive, log)
            yield path
        finally:
            server.terminate()
            try:
                server.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()


def wait_until_loaded(ready: socket.socket, alive: socket.socket, log: Path) -> None:
    """Wait for the server's report; ChatError, with its last line, if the server ends."""
    while alive not in select.select([ready, alive], [], [])[0]:
        if b"READY=1" in ready.recv(4096).splitlines():
            return
    lines = log.read_text("utf-8", "replace").splitlines()
    raise ChatError(lines[-1].removeprefix("pyllmcancel: ") if lines else "the model could not be loaded")


def is_base(client: httpx.Client) -> bool:
    """Return whether the model's file has no chat template."""
    props = read_json(client.get("/props").content)
    return isinstance(props, dict) and props.get("chats") is False


def talk(client: httpx.Client, console: Console) -> None:
    """Ask and answer until the end of the input, or a Ctrl-C at the prompt."""
    messages: list[dict[str, str]] = []
    while True:
        try:
            said = console.input("[bold]> [/bold]")
        except EOFError:
            return
        if not said.strip():
            continue
        messages.append({"role": "user", "content": said})
        answer = ""
        try:
            for text in answered(client, messages):
                answer += text
                console.print(plain_lines(text), end="", markup=False)
            console.print()
        except ChatError as error:
            console.print(f"\n{plain(error)}", style="red", markup=False)
        except KeyboardInterrupt:  # the stream is closed by now, which cancels the request
            console.print("\ncancelled", style="yellow")
        # A part of an answer stays in the conversation; a question without an answer does not.
        if answer:
            messages.append({"role": "assistant", "content": answer})
        else:
            messages.pop()


def answered(client: httpx.Client, messages: list[dict[str, str]]) -> Iterator[str]:
    """Iterate over the pieces of an answer; ChatError if the answer is not complete."""
    body: dict[str, Any] = {"messages": messages, "stream": True}
    decoder = EventDecoder()
    try:
        with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            if not reply.is_success:
                raise ChatError(message_in(reply.read()) or f"the server answered {reply.status_code}")
            for data in reply.iter_bytes():
                for event in decoder.feed(data):
                    if event.data == "[DONE]":
                        return
                    yield from text_of(read_json(event.data.encode()))
    except (httpx.HTTPError, BrokenFeedError) as error:
        raise ChatError(reason_of(error)) from None
    raise ChatError("the answer is not complete: the server closed the connection")


def text_of(chunk: Any) -> Iterator[str]:
    match chunk:
        case {"error": {"message": str(why)}}:
            raise ChatError(why)
        case {"choices": [{"delta": {"content": str(text)}}]}:
            yield text


def plain_lines(text: str) -> str:
    """Return text that cannot control the terminal; line feeds and tabs stay."""
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")
