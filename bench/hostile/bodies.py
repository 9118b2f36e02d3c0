"""Hostile requests, as they go over the wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

MIB = 1 << 20


def request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\nConnection: close\r\n\r\n".encode() + body


def json_request(path: str, body: Any) -> bytes:
    return request(path, json.dumps(body).encode())


def completion(**fields: Any) -> bytes:
    return json_request("/v1/completions", {"max_tokens": 1} | fields)


def biased(n_bytes: int) -> bytes:
    return json_request("/completion", {"prompt": "x", "n_predict": 1, "logit_bias": [["word " * (n_bytes // 5), 1.0]]})


def token_numbers(n_bytes: int) -> bytes:
    return request("/v1/completions", b'{"max_tokens":1,"prompt":[' + b"12," * (n_bytes // 3) + b"12]}")


def unknown_fields(n_bytes: int) -> bytes:
    fields = b",".join(b'"field-%07d":1' % number for number in range(n_bytes // 18))
    return request("/v1/completions", b'{"prompt":"x",' + fields + b"}")


def messages(count: int) -> bytes:
    return json_request("/apply-template", {"messages": [{"role": "user", "content": "hello"}] * count})


def response_fields(count: int, n_bytes: int) -> bytes:
    return json_request(
        "/completion", {"prompt": "x", "n_predict": 1, "response_fields": ["a/" * (n_bytes // 2)] * count}
    )


def one_byte_chunks(count: int) -> bytes:
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    chunks = b"1\r\n{\r\n" + b"1\r\n \r\n" * count + b"0\r\n\r\n"
    return f"{head}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunks


def extras(count: int) -> bytes:
    extra = [{"filename": "file.py", "text": "x = 1\n"}] * count
    return json_request("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 1, "input_extra": extra})


# Each is sent again and again by one client, while the others are timed. Those of more than 8 MiB are refused by their
# length today; beside them stands the same of just less than that.
BODIES: dict[str, Callable[[], bytes]] = {
    "logit_bias text, 5 MB": lambda: biased(5_000_000),
    "100,000 prompts": lambda: completion(prompt=["x"] * 100_000),
    "400 prompts of 19 kB": lambda: completion(prompt=["some words " * 1_727] * 400),
    "token numbers, 30 MB": lambda: token_numbers(30_000_000),
    "token numbers, 7.9 MiB": lambda: token_numbers(int(7.9 * MIB)),
    "unknown fields, 30 MB": lambda: unknown_fields(30_000_000),
    "unknown fields, 7.9 MiB": lambda: unknown_fields(int(7.9 * MIB)),
    "200,000 messages": lambda: messages(200_000),
    "10,000 messages": lambda: messages(10_000),
    "128 response_fields of 200 kB": lambda: response_fields(128, 200_000),
    "40 response_fields of 200 kB": lambda: response_fields(40, 200_000),
    "200,000 extras": lambda: extras(200_000),
    "escaped text, 7.9 MiB": lambda: request("/tokenize", b'{"content":"' + b"\\n" * int(3.95 * MIB) + b'"}'),
    "99,000 token numbers": lambda: token_numbers(3 * 99_000),
    "300,000 chunks of a byte": lambda: one_byte_chunks(300_000),
}
# Sent by seven clients who all leave at once.
PROMPTS_OF_LEAVERS: dict[str, Callable[[], bytes]] = {
    "7 leave: prompts of 24 MB": lambda: completion(prompt="some words " * 2_181_818),
    "7 leave: prompts of 7.9 MiB": lambda: completion(prompt="some words " * int(7.9 * MIB / 11)),
}
