"""Stands for a worker: answers on a Unix socket as a test's folder says, and starts in a moment.

    python -I -S fake_model_server.py --host SOCKET … --alias NAME …

With ``--host ADDRESS:PORT --serves MODEL`` it stands for a worker elsewhere, and knows its front by the key in ``KEY``.

The folder ``CONTROL`` may have files that are named after a model. ``NAME.loads`` keeps it loading for as long as the
file is there. ``NAME.dies`` ends it at its start, with the status that the file has. ``NAME.lacks`` has it answer with
the error that the file has, as STATUS CODE. ``NAME.feed-ends`` ends its feed. It gets a line in ``NAME.log`` for each
request, and for each end: ``left`` if the connection was closed before the answer was complete. While ``NAME.unseen``
is there, it has not seen the requests that it gets. With ``--fit-print`` it prints what ``NAME.needs`` has, or says
what ``NAME.unfit`` has. ``NAME.stuck`` has it answer no messages of the front, and ``NAME.ends`` answer
everything but its health with an error, as while it drains.
"""

import asyncio
import json
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

CONTROL = Path(os.environ.get("CONTROL", ""))
KEY = os.environ.get("KEY", "key")
TICK = 0.005


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Link:
    """The frames of a request, as `pyllmcancel.server.behind` writes them."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.reason = ""  # of a cancel
        writer.write(b"HTTP/1.1 200 OK\r\nx-front-link: 1\r\n\r\n")

    def frame(self, kind: bytes, content: bytes = b"") -> None:
        self.writer.write(struct.pack("!cI", kind, len(content)) + content)

    def accept(self, asked: dict[str, object]) -> None:
        names = [asked.get(name) for name in ("session_id", "parent_session_id", "supersede")]
        self.frame(b"A", json.dumps([[*names, 0], [1, 1, None], [], None]).encode())

    def start(self, status: int, content_type: str, length: int | None = None) -> None:
        headers = [["content-type", content_type], *([] if length is None else [["content-length", str(length)]])]
        self.frame(b"S", json.dumps([status, headers]).encode())

    def end(self, finish_reason: str, reason: str | None = None) -> None:
        state = ["finished", [], False, [None, None], 1, 0, 1, []]
        told = {"state": state, "phase": "decode", "finish_reason": finish_reason, "reason": reason}
        self.frame(b"E", json.dumps(told | dict.fromkeys(("superseded_by", "error", "param"))).encode())


class Model:
    def __init__(self, name: str) -> None:
        self.name = name
        self.n_running = 0

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
            known = {"running": self.n_running, "waiting": 0, "slots": 4, "boot": str(os.getpid())}
            its = known | {"now": time.monotonic()} if headers.get("x-worker-key") == KEY else {}
            ok = {"status": "ok"} | its
            self.answer(writer, 503 if loads else 200, {"status": "loading", "progress": 0.5} if loads else ok)
        elif target == "/v1/models":
            self.answer(writer, 200, {"data": [{"id": option("--serves"), "aliases": ["known"]}]}, self.name)
        else:
            # The request's line comes after what else its head says: tests wait for it, and then read the others.
            if "x-front-again" in headers:
                self.log("again")
            self.log(f"request {target} {headers.get('x-request-id')}")
            asked = json.loads(body) if body else {}
            if (CONTROL / f"{self.name}.ends").exists():
                self.answer(writer, 503, {"error": {"code": "shutdown"}})
                writer.close()
                return
            if target.startswith("/v1/events"):
                lacks = (CONTROL / f"{self.name}.lacks").exists()
                asked = {} if lacks else {"stream": True, "until": f"{self.name}.feed-ends"}
            if target == "/v1/worker":
                await self.reply(writer, asked)
            elif target.startswith("/v1/responses/"):
                self.find(writer)
            else:
                await self.accept(reader, writer, asked, headers | {"target": target})
        writer.close()

    async def while_there(self, what: str) -> None:
        while (CONTROL / f"{self.name}.{what}").exists():  # noqa: ASYNC110 - the test is another process
            await asyncio.sleep(TICK)

    async def reply(self, writer: asyncio.StreamWriter, message: dict[str, object]) -> None:
        """Answer a message of the front's."""
        self.log(f"news {json.dumps(message)}")
        await self.while_there("stuck")
        self.answer(writer, 200, {})

    async def read_commands(self, reader: asyncio.StreamReader, link: Link) -> None:
        """Act on the commands that come after a request."""
        while line := (await reader.readline()).decode().strip():
            self.log(f"command {line}")
            if line in ("wait", "go"):
                continue
            await self.while_there("stuck")
            link.reason = line
        link.reason = "disconnect"

    def find(self, writer: asyncio.StreamWriter) -> None:
        """Answer for a stored response."""
        if (CONTROL / f"{self.name}.lacks").exists():
            self.answer(writer, 404, {"error": {"code": "not_found"}})
        else:
            self.answer(writer, 200, {"model": self.name})

    async def accept(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: dict[str, object],
        headers: dict[str, str],
    ) -> None:
        link = Link(writer) if "x-front-link" in headers else None
        reading = None if link is None else asyncio.create_task(self.read_commands(reader, link))
        await self.while_there("unseen")
        if link is not None and link.reason:
            self.respond(writer, link, 499, {"error": {"code": link.reason}})
            return
        self.n_running += 1
        told = {"model": self.name, "headers": headers, "asked": asked}
        try:
            if not asked.get("stream"):
                lacks = CONTROL / f"{self.name}.lacks"
                status, code = lacks.read_text().split() if lacks.exists() else ("200", "")
                self.respond(writer, link, int(status), {"error": {"code": code}} if code else told)
                self.log("answered")
                if link is not None and (asked.get("background") or asked.get("ends_later")):
                    while not link.reason:  # noqa: ASYNC110
                        await asyncio.sleep(TICK)
                    link.end("cancelled", link.reason)
            elif link is None:
                await self.feed(reader, writer, str(asked["until"]))
            else:
                await self.stream(link, asked)
        finally:
            self.n_running -= 1
            if reading is not None:
                reading.cancel()

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
        if computes and not (told["asked"].get("background") or told["asked"].get("ends_later")):
            link.end("stop")
        link.frame(b"F")

    async def stream(self, link: Link, asked: dict[str, object]) -> None:
        """Answer as a stream, of which `until` names a file that ends it."""
        link.accept(asked)
        link.start(200, "text/event-stream")
        number = 0
        while not (CONTROL / str(asked["until"])).exists():
            number += 1
            link.frame(b"B", f"data: {number}{' ' * int(str(asked.get('padding', 0)))}\n\n".encode())
            await asyncio.sleep(TICK)
            if link.reason:
                has_left = link.reason == "disconnect"
                self.log("left" if has_left else "cancelled")
                if not has_left:
                    link.frame(b"B", b'data: {"error": {"code": "explicit"}}\n\n')
                link.end("cancelled", link.reason)
                link.frame(b"C" if has_left else b"F")
                return
        link.frame(b"B", b"data: [DONE]\n\n")
        link.end("stop")
        link.frame(b"F")
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
            told = {"type": "told", "replica": self.name, "number": number}
            writer.write(chunk(f"id: {self.name}-{number}\ndata: {json.dumps(told)}\n\n".encode()))
            await asyncio.sleep(TICK)
            if leaving.done():
                self.log("left")
                return
        leaving.cancel()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()
        self.log("answered")

    def answer(self, writer: asyncio.StreamWriter, status: int, told: object, served_by: str = "") -> None:
        body = json.dumps(told).encode()
        head = f"HTTP/1.1 {status} OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        served = f"x-served-by: {served_by}\r\n" if served_by else ""
        writer.write(f"{head}{served}\r\n".encode() + body)


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
    host, colon, port = option("--host").partition(":")
    if colon:
        server = await asyncio.start_server(model.serve, host, int(port))
        (CONTROL / f"{model.name}.port").write_text(str(server.sockets[0].getsockname()[1]))
    else:
        server = await asyncio.start_unix_server(model.serve, host)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
