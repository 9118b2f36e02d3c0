"""The terminal chat: one conversation with a server, which may be started for it."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import httpx
from rich.console import Console

from pyllmcancel.router.child import bound
from pyllmcancel.sse import BrokenFeedError, EventDecoder
from pyllmcancel.top.feed import message_in, reason_of
from pyllmcancel.top.text import plain
from pyllmcancel.top.values import read_json

SOCKET = "chat.sock"
LOOK_EVERY = 0.2  # seconds, until the model is loaded
END_SECONDS = 10.0
TIMEOUT = httpx.Timeout(10.0, read=None)  # a prompt may take minutes
BASE = "This model has no chat template: it was probably trained to complete texts, and its answers may make no sense."
HELP = "Ctrl-C cancels an answer; Ctrl-C or Ctrl-D at the prompt leaves."


class ChatError(Exception):
    """There is no conversation; the message says why."""


def run(model: str, api_key: str, console: Console | None = None) -> int:
    """Talk until the reader leaves; return the exit status."""
    console = console or Console(highlight=False)
    if sys.platform != "win32":
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


def leave(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


@contextmanager
def connected(model: str, api_key: str, console: Console) -> Iterator[httpx.Client]:
    """Connect to a server, or start one for `model` on a Unix socket; that one ends with the conversation."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    if model.startswith(("http://", "https://")):
        with httpx.Client(base_url=model.rstrip("/").removesuffix("/v1"), headers=headers, timeout=TIMEOUT) as client:
            yield client
        return
    with tempfile.TemporaryDirectory(prefix="pyllmcancel-chat-") as folder:
        socket, log = Path(folder, SOCKET), Path(folder, "log")
        command = [sys.executable, "-P", "-m", "pyllmcancel", "serve", model, "--host", str(socket), "--store", "off"]
        if sys.platform == "linux":
            command = bound(command)
        transport = httpx.HTTPTransport(uds=str(socket))
        # Ctrl-C must reach this process only.
        with (
            log.open("wb") as errors,
            subprocess.Popen(command, stdout=errors, stderr=errors, start_new_session=True) as server,
            httpx.Client(base_url="http://localhost", transport=transport, timeout=TIMEOUT) as client,
        ):
            try:
                wait_until_loaded(server, client, console, log)
                yield client
            finally:
                server.terminate()
                try:
                    server.wait(END_SECONDS)
                except subprocess.TimeoutExpired:
                    server.kill()


def wait_until_loaded(server: subprocess.Popen[bytes], client: httpx.Client, console: Console, log: Path) -> None:
    """Show the progress of the load; ChatError, with the server's last line, if the server ends."""
    with console.status("loading"):
        while True:
            if server.poll() is not None:
                lines = log.read_text("utf-8", "replace").splitlines()
                raise ChatError(lines[-1].removeprefix("pyllmcancel: ") if lines else "the model could not be loaded")
            try:
                # httpx does not close the socket of a connection that could not be made.
                if log.with_name(SOCKET).exists() and client.get("/health").is_success:
                    return
            except httpx.TransportError:
                pass  # it does not listen yet
            time.sleep(LOOK_EVERY)


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
