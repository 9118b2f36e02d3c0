"""Stands for a model's process: answers on a Unix socket as a test's folder says, and starts in a moment.

    python -I -S fake_model_server.py --host SOCKET … --alias NAME …

The folder ``CONTROL`` may have files that are named after a model. ``NAME.loads`` keeps it loading for as long as the
file is there. ``NAME.dies`` ends it at its start, with the status that the file has. ``NAME.lacks`` has it answer with
the error that the file has, as STATUS CODE. ``NAME.feed-ends`` ends its feed. It gets a line in ``NAME.log`` for each
request, and for each end: ``left`` if the connection was closed before the answer was complete. While ``NAME.unseen``
is there, it has not seen the requests that it gets. With ``--fit-print`` it prints what ``NAME.needs`` has, or says
what ``NAME.unfit`` has. ``NAME.stuck`` has it answer no messages of servers like it, and ``NAME.ends`` answer
everything but its health with an error, as while it drains.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

CONTROL = Path(os.environ.get("CONTROL", ""))
TICK = 0.005


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def cancelled(request_id: str) -> dict[str, object]:
    usage = {
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "total_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    ending = {"outcome": "cancelled", "reason": "explicit", "phase": "decode", "cancel_latency_ms": 1.0}
    return {"id": request_id, **ending, "usage": usage}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Link:
    """The frames of a request, as `pyllmcancel.server.behind` writes them."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        writer.write(b"HTTP/1.1 200 OK\r\nx-front-link: 1\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")

    def frame(self, kind: bytes, content: bytes = b"") -> None:
        self.writer.write(chunk(struct.pack("!cI", kind, len(content)) + content))

    def accept(self, asked: dict[str, object]) -> None:
        names = [asked.get(name) for name in ("session_id", "parent_session_id", "supersede")]
        self.frame(b"A", json.dumps([[*names, 0], [1, 1, None], [], None]).encode())

    def start(self, status: int, content_type: str, length: int | None = None) -> None:
        headers = [["content-type", content_type], *([] if length is None else [["content-length", str(length)]])]
        self.frame(b"S", json.dumps([status, headers]).encode())

    def end(self, finish_reason: str, reason: str | None = None) -> None:
        state = ["finished", [], False, None, [None, None], 1, 0, 1, []]
        told = {"state": state, "phase": "decode", "finish_reason": finish_reason, "reason": reason}
        nothing = dict.fromkeys(("superseded_by", "error", "param"))
        self.frame(b"E", json.dumps(told | nothing).encode())

    def close(self) -> None:
        self.writer.write(b"0\r\n\r\n")


class Model:
    def __init__(self, name: str) -> None:
        self.name = name
        self.n_running = 0
        self.known: dict[str, str] = {}  # the sessions of what it computes
        self.cancels: dict[str, asyncio.Event] = {}
        self.below: dict[str, set[str]] = {}  # the sessions below each that it has ever known
        self.ended = set[str]()  # ids of requests that were cancelled when they were seen
        self.on_their_way = set[str]()  # ids of requests that were cancelled before they were seen

    def log(self, text: str) -> None:
        with (CONTROL / f"{self.name}.log").open("a") as file:
            file.write(text + "\n")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        _, target, _ = first.split(" ")
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if target == "/health":
            loads = (CONTROL / f"{self.name}.loads").exists()
            ok = {"status": "ok", "running": self.n_running, "slots": 4}
            told = {"status": "loading", "progress": 0.5} if loads else ok
            self.answer(writer, 503 if loads else 200, told)
        else:
            self.log(f"request {target} {headers.get('x-request-id')}")
            if left := headers.get("x-arrived", "").split(" ")[2:]:
                self.log(f"had left at {left[0]}")
            asked = json.loads(body) if body else {}
            if (CONTROL / f"{self.name}.ends").exists():
                self.answer(writer, 503, {"error": {"code": "shutdown"}})
                writer.close()
                return
            if target.startswith("/v1/events"):
                lacks = (CONTROL / f"{self.name}.lacks").exists()
                asked = {} if lacks else {"stream": True, "until": f"{self.name}.feed-ends"}
            if "message" in asked:
                await self.reply(writer, asked["message"])
            elif target.startswith(("/v1/requests", "/v1/sessions")):
                lists = target.partition("?")[0] in ("/v1/requests", "/v1/requests/cancel", "/v1/sessions")
                self.answer(writer, 200 if lists else 404, {"object": "list", "data": []})
            else:
                await self.accept(reader, writer, asked, headers | {"target": target})
        writer.close()

    async def while_there(self, what: str) -> None:
        while (CONTROL / f"{self.name}.{what}").exists():  # noqa: ASYNC110 - the test is another process
            await asyncio.sleep(TICK)

    async def reply(self, writer: asyncio.StreamWriter, message: dict[str, object]) -> None:
        """Answer a message as a server of a fleet does: of cancels, those by id."""
        self.log(f"news {json.dumps(message)}")
        await self.while_there("stuck")
        ids = message.get("ids") or []
        assert isinstance(ids, list)
        reply: dict[str, object] = {"newer": []}
        match message["kind"]:
            case "cancel":
                self.on_their_way |= set(ids) if message["on_their_way"] else set()
                known = [one for one in ids if one in self.known]
                for one in known:
                    self.cancels[one].set()
                before = {one: [cancelled(one) | {"outcome": "already_finished"}] for one in ids if one in self.ended}
                reply = {"live": {one: [cancelled(one)] for one in known}, "ended": before}
            case "leave":
                reply = {}
            case "cancel_families":
                sessions = {name for one in message["sessions"] for name in self.family(one)}
                members = [one for one, session in self.known.items() if session in sessions]
                for one in members:
                    self.cancels[one].set()
                reply = {"sessions": sorted(sessions), "requests": [*map(cancelled, members)]}
            case "cancel_matching":
                reply = {"requests": []}
            case "ask_stream":
                reply = {"found": not (CONTROL / f"{self.name}.lacks").exists()}
            case "list_requests" | "list_sessions":
                reply = {"data": []}
            case "whose_request" | "whose_session":
                reply = {"owners": {one: [""] for one in ids if one in self.known}}
        self.answer(writer, 200, {"sender": None, "reply": reply})

    def family(self, session: str) -> set[str]:
        return {session, *self.below[session]} if session in self.below else set()

    async def accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[str, object], headers: object
    ) -> None:
        assert isinstance(headers, dict)
        await self.while_there("unseen")
        link = Link(writer) if "x-front-link" in headers else None
        name = headers.get("x-request-id", "")
        if name in self.on_their_way:
            self.ended.add(name)
            self.respond(writer, link, 499, {"error": {"code": "explicit"}})
            return
        session, parent = str(asked.get("session_id")), str(asked.get("parent_session_id"))
        self.below.setdefault(session, set())
        self.below.setdefault(parent, set()).add(session)
        self.n_running += 1
        self.known[name], self.cancels[name] = session, asyncio.Event()
        told = {"model": self.name, "headers": headers, "asked": asked}
        try:
            if not asked.get("stream"):
                lacks = CONTROL / f"{self.name}.lacks"
                status, code = lacks.read_text().split() if lacks.exists() else ("200", "")
                self.respond(writer, link, int(status), {"error": {"code": code}} if code else told)
                self.log("answered")
            elif link is None:
                await self.feed(reader, writer, str(asked["until"]))
            else:
                await self.stream(reader, link, asked, name)
        finally:
            self.n_running -= 1
            self.known.pop(name, None)

    def respond(self, writer: asyncio.StreamWriter, link: Link | None, status: int, told: Any) -> None:
        """Answer a request in one piece, through its link if it has one."""
        if link is None:
            self.answer(writer, status, told)
            return
        computes = status < 400 and told["headers"]["target"] != "/tokenize"
        if computes:
            link.accept(told["asked"])
        body = json.dumps(told).encode()
        link.start(status, "application/json", len(body))
        link.frame(b"B", body)
        if computes:
            link.end("stop")
        link.frame(b"F")
        link.close()

    async def stream(self, reader: asyncio.StreamReader, link: Link, asked: dict[str, object], name: str) -> None:
        """Answer as a stream, of which `until` names a file that ends it."""
        link.accept(asked)
        link.start(200, "text/event-stream")
        leaving = asyncio.create_task(reader.read(1))
        number = 0
        while not (CONTROL / str(asked["until"])).exists():
            number += 1
            link.frame(b"B", f"data: {number}{' ' * int(str(asked.get('padding', 0)))}\n\n".encode())
            await asyncio.sleep(TICK)
            if leaving.done():
                self.log("left")
                return
            if self.cancels[name].is_set():
                self.log("cancelled")
                link.frame(b"B", b'data: {"error": {"code": "explicit"}}\n\n')
                link.end("cancelled", "explicit")
                link.frame(b"F")
                link.close()
                return
        leaving.cancel()
        link.frame(b"B", b"data: [DONE]\n\n")
        link.end("stop")
        link.frame(b"F")
        link.close()
        await link.writer.drain()
        self.log("answered")

    async def feed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, until: str) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        )
        leaving = asyncio.create_task(reader.read(1))
        number = 0
        while not (CONTROL / until).exists():
            number += 1
            piece = f'data: {{"type": "told", "replica": "{self.name}", "number": {number}}}\n\n'.encode()
            writer.write(chunk(piece))
            await asyncio.sleep(TICK)
            if leaving.done():
                self.log("left")
                return
        leaving.cancel()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()
        self.log("answered")

    def answer(self, writer: asyncio.StreamWriter, status: int, told: object) -> None:
        body = json.dumps(told).encode()
        writer.write(
            b"HTTP/1.1 %d OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
            + body
        )


async def main() -> None:
    model = Model(option("--alias"))
    if "--fit-print" in sys.argv:
        model.log("measured")
        if (why := CONTROL / f"{model.name}.unfit").exists():
            sys.stderr.write(why.read_text() + "\n")
            sys.exit(2)
        needs = CONTROL / f"{model.name}.needs"
        sys.stdout.write(needs.read_text() if needs.exists() else "{}")
        return
    model.log(f"start {os.getpid()}")
    dies = CONTROL / f"{model.name}.dies"
    if dies.exists():
        sys.stderr.write(f"{model.name} does not want to\n")
        status = int(dies.read_text())
        if status < 0:
            os.kill(os.getpid(), -status)
        sys.exit(status)
    server = await asyncio.start_unix_server(model.serve, option("--host"))
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
