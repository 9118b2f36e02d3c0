"""Requests of Java's clients, byte for byte, to a real server: an offer of HTTP/2 with a body, and bodies in chunks.

The JDK's were recorded from OpenJDK 17.0.15's `HttpClient`. LangChain4j 1.20 calls it with a text (`sized`), as its
`JdkHttpClient.java` says; Spring's `JdkClientHttpRequestFactory` with a publisher of unknown length (`chunked`). Spring
AI 2.0.1 uses OkHttp through OpenAI's library: its request is built as OkHttp's `BridgeInterceptor` says.
"""

import json
import socket
import time

import pytest

from tests.support.http_process import LIMIT, ServerProcess, assert_ends_soon, fresh_id

OFFER = (
    "Connection: Upgrade, HTTP2-Settings",
    "HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA",
    "Upgrade: h2c",
)
AGENT = "User-Agent: Java-http-client/17.0.15"
OKHTTP = ("Connection: Keep-Alive", "Accept-Encoding: gzip", "User-Agent: OpenAIClientImpl/Java 4.9.0")
FORMS = {
    "sized": (*OFFER, AGENT),
    "chunked": (*OFFER, AGENT),
    "expecting": (*OFFER, AGENT, "Expect: 100-Continue"),
    "chunked-1.1": (AGENT,),
    "okhttp": OKHTTP,
}
forms = pytest.mark.parametrize("form", FORMS)


class Java:
    """One of these clients, on a connection of its own."""

    def __init__(self, port: int, form: str) -> None:
        self.form = form
        self.socket = socket.create_connection(("127.0.0.1", port), LIMIT)
        self.answers = self.socket.makefile("rb")

    def ask(self, **fields: object) -> str:
        name = fresh_id()
        chat = {"model": "stdlib-coder", "messages": [{"role": "user", "content": "hello"}], "stream": True}
        body = json.dumps(chat | fields).encode()
        chunked = self.form.startswith("chunked")
        length = "Transfer-encoding: chunked" if chunked else f"Content-Length: {len(body)}"
        lines = (length, "Host: localhost", "Content-Type: application/json", f"X-Request-Id: {name}")
        head = "\r\n".join(("POST /v1/chat/completions HTTP/1.1", *FORMS[self.form], *lines, "", ""))
        self.socket.sendall(head.encode())
        if self.form == "expecting":
            assert b" 100 " in self.answers.readline()
            assert self.answers.readline() == b"\r\n"
        self.socket.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body)
        return name

    def answer(self) -> bytes:
        status = self.answers.readline()
        while (line := self.answers.readline()) != b"\r\n":
            assert not line.lower().startswith(b"upgrade"), line
        text = b""
        while size := int(self.answers.readline(), 16):
            text += self.answers.read(size)
            self.answers.readline()
        self.answers.readline()
        assert text.endswith(b"data: [DONE]\n\n")
        return status

    def close(self) -> None:
        self.answers.close()
        self.socket.close()


@forms
def test_javas_requests_are_answered_one_after_another_and_end_when_it_leaves(server: ServerProcess, form: str) -> None:
    java = Java(server.port, form)
    for _ in range(2):
        java.ask(max_tokens=2)
        assert java.answer() == b"HTTP/1.1 200 OK\r\n"
    last = java.ask(max_tokens=1000, ignore_eos=True)
    server.wait_for(last, completion_tokens=lambda n: n > 0)
    left_at = time.time()
    java.close()
    assert_ends_soon(server, last, left_at, "decode")
    assert "upgrade" not in server.log
