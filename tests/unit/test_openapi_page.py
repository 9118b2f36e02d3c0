"""The OpenAPI page comes from another process, which may fail."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.openapi.page import Page

pytestmark = pytest.mark.anyio
LIMIT = 60.0  # seconds

# Notes that it was started, and writes how often that was.
COUNTS = """
import sys
with open(sys.argv[1], "a+") as file:
    file.write("x")
    file.seek(0)
    sys.stdout.write(str(len(file.read())))
"""
FAILS_ONCE = COUNTS + "sys.exit(file.name.endswith('fails') and open(file.name).read() == 'x')"
WAITS = "import time; time.sleep(600)"


def python(program: str, *arguments: object) -> Page:
    return Page((sys.executable, "-I", "-S", "-c", program, *map(str, arguments)))


async def test_all_who_ask_get_what_one_process_writes(tmp_path: Path) -> None:
    page = python(COUNTS, tmp_path / "file")
    async with asyncio.timeout(LIMIT):
        assert await asyncio.gather(page.text(), page.text()) == [b"1", b"1"]
        assert await page.text() == b"1"


async def test_who_asks_after_a_failure_gets_what_another_process_writes(tmp_path: Path) -> None:
    page = python(FAILS_ONCE, tmp_path / "fails")
    async with asyncio.timeout(LIMIT):
        with pytest.raises(ApiError, match="its process failed") as failed:
            await page.text()
        assert failed.value.status == 503
        assert await page.text() == b"2"


async def test_who_leaves_does_not_take_it_from_the_others(tmp_path: Path) -> None:
    page = python(COUNTS, tmp_path / "file")
    leaver = asyncio.create_task(page.text())
    stays = asyncio.create_task(page.text())
    await asyncio.sleep(0)
    leaver.cancel()
    async with asyncio.timeout(LIMIT):
        assert await stays == b"1"


async def test_without_a_process_it_is_an_error_of_the_moment() -> None:
    page = Page(("/nowhere/python",))
    with pytest.raises(ApiError, match="No such file") as failed:
        await page.text()
    assert failed.value.status == 503


async def test_closing_ends_the_process() -> None:
    page = python(WAITS)
    asked = asyncio.create_task(page.text())
    await asyncio.sleep(0)
    async with asyncio.timeout(LIMIT):
        await page.close()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await page.close()
