"""The output of a child process: all of its lines, in some pieces."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from pyllmcancel.front import child
from pyllmcancel.front.child import LINE, pass_on


@dataclass
class Pipe:
    """A pipe whose lines are collected, as the pieces in which they were passed on."""

    writing: int
    pieces: list[list[str]]
    came: asyncio.Event

    def write(self, data: bytes) -> None:
        os.write(self.writing, data)


def passed_on(use: Callable[[Pipe], Awaitable[None]]) -> list[list[str]]:
    """Use a pipe, and close it as a process does that ends; return the pieces."""

    async def run() -> list[list[str]]:
        reading, writing = os.pipe()
        pipe, ended = Pipe(writing, [], asyncio.Event()), asyncio.Event()

        def take(lines: list[str]) -> None:
            pipe.pieces.append(lines)
            pipe.came.set()

        passing = asyncio.create_task(pass_on(os.fdopen(reading, "rb", 0), take, ended))
        await use(pipe)
        os.close(writing)
        ended.set()
        await passing
        return pipe.pieces

    return asyncio.run(run())


def test_every_line_comes_once_and_a_line_may_come_in_parts() -> None:
    async def use(pipe: Pipe) -> None:
        for data in (b"one\ntw", b"o\n", b"\n", b"thr\xffee\nfour"):
            pipe.write(data)
            await asyncio.sleep(0)

    assert [line for piece in passed_on(use) for line in piece] == ["one", "two", "", "thr�ee", "four"]


def test_a_line_without_an_end_is_not_kept() -> None:
    async def use(pipe: Pipe) -> None:
        await asyncio.to_thread(pipe.write, b"x" * (LINE + 1))

    assert "".join(line for piece in passed_on(use) for line in piece) == "x" * (LINE + 1)


def test_what_comes_in_the_pause_is_not_passed_on_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "PAUSE", 1e6)

    async def use(pipe: Pipe) -> None:
        pipe.write(b"first\n")
        await pipe.came.wait()
        for i in range(5):
            pipe.write(b"%d\n" % i)
            await asyncio.sleep(0.01)

    first, *rest = passed_on(use)
    assert (first, [line for piece in rest for line in piece]) == (["first"], ["0", "1", "2", "3", "4"])
    assert len(rest) <= 2  # what had come when the reading paused, and what waited in the pipe
