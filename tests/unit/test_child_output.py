"""The output of a child process: all of its lines, in some pieces."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

import pytest

from pyllmcancel.front import output
from pyllmcancel.front.output import LINE, Output


@dataclass
class Pipe:
    """A pipe whose lines are collected, as the pieces in which they were passed on."""

    writing: int
    output: Output
    pieces: list[list[str]]
    came: asyncio.Event

    @classmethod
    async def open(cls) -> Pipe:
        pieces: list[list[str]] = []
        came = asyncio.Event()

        def take(lines: list[str]) -> None:
            pieces.append(lines)
            came.set()

        made, writing = await Output.of_a_pipe(take)
        return cls(writing, made, pieces, came)

    def write(self, data: bytes) -> None:
        os.write(self.writing, data)

    async def lines(self) -> list[str]:
        """Close the pipe as a process does that ends; return all lines."""
        os.close(self.writing)
        self.output.hurry()
        await self.output.closed
        return [line for piece in self.pieces for line in piece]


def test_every_line_comes_once_and_a_line_may_come_in_parts() -> None:
    async def run() -> list[str]:
        pipe = await Pipe.open()
        for data in (b"one\ntw", b"o\n", b"\n", b"thr\xffee\nfour"):
            pipe.write(data)
            await asyncio.sleep(0)
        return await pipe.lines()

    assert asyncio.run(run()) == ["one", "two", "", "thr�ee", "four"]


def test_a_line_without_an_end_is_not_kept() -> None:
    async def run() -> list[str]:
        pipe = await Pipe.open()
        written = asyncio.create_task(asyncio.to_thread(pipe.write, b"x" * (LINE + 1)))
        pipe.output.hurry()
        await written
        return await pipe.lines()

    lines = asyncio.run(run())
    assert "".join(lines) == "x" * (LINE + 1)


def test_what_comes_in_the_pause_is_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PAUSE", 1e6)

    async def run() -> list[list[str]]:
        pipe = await Pipe.open()
        pipe.write(b"first\n")
        await pipe.came.wait()
        for i in range(5):
            pipe.write(b"%d\n" % i)
            await asyncio.sleep(0.01)
        await pipe.lines()
        return pipe.pieces

    assert asyncio.run(run()) == [["first"], ["0", "1", "2", "3", "4"]]
