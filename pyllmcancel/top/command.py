"""The command ``pyllmcancel top``: the live screen, or a single output if there is no screen."""

from __future__ import annotations

import argparse
import asyncio
import io
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx
from rich.console import Console

from pyllmcancel.sse import ServerEvent
from pyllmcancel.top.choices import Choices, Size, Times
from pyllmcancel.top.client import open_client
from pyllmcancel.top.feed import Feed, FeedError, Happening, Lost
from pyllmcancel.top.lanes import ASCII, BLOCKS
from pyllmcancel.top.replicas import Replicas
from pyllmcancel.top.screen import Screen
from pyllmcancel.top.values import read_json
from pyllmcancel.top.view import draw

PATIENCE = 15.0  # for the snapshot, if only that is shown


def run(arguments: argparse.Namespace) -> int:
    """Show the server; return the exit status: 1 if that is impossible."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False, markup=False, emoji=False)
    try:
        return asyncio.run(show(arguments.url, arguments.api_key or "", console))
    except FeedError as error:
        sys.stderr.write(f"pyllmcancel: {error}\n")
        return 1


async def show(url: str, api_key: str, console: Console) -> int:
    async with open_client(url, api_key) as client:
        choices = Choices(
            url=str(client.base_url).rstrip("/"), glyphs=BLOCKS if console.encoding.startswith("utf") else ASCII
        )
        # Windows's terminals have other calls for keys and sizes, which are not implemented.
        if sys.platform == "win32" or not console.is_terminal or console.is_dumb_terminal:
            return await snapshot(client, console, choices)
        return await watch(client, console, choices)


async def watch(client: httpx.AsyncClient, console: Console, choices: Choices) -> int:
    from pyllmcancel.top.app import App
    from pyllmcancel.top.keys import Keyboard

    if not sys.stdin.isatty():
        choices.keys = False
        with Screen(console) as screen:
            return await App(client, screen, None, choices).run()
    with Keyboard(sys.stdin.fileno()) as keyboard, Screen(console) as screen:
        return await App(client, screen, keyboard, choices).run()


async def snapshot(client: httpx.AsyncClient, console: Console, choices: Choices) -> int:
    """Print the server's state once, and end."""
    replicas = Replicas()
    choices.link, choices.lost, choices.keys = "", False, False
    try:
        async with asyncio.timeout(PATIENCE):
            async with aclosing(first_events(client)) as events:
                async for event in events:
                    data = read_json(event.data)
                    if has_no_model(data):
                        raise FeedError(f"no model of {choices.url} is loaded; pyllmcancel models status lists them")
                    replicas.apply(data)
                    if replicas.complete:
                        break
    except TimeoutError:
        if not replicas.states:
            raise FeedError(f"{choices.url} sends no snapshot in {PATIENCE:.0f} s") from None
    state = replicas.shown
    if not state.known:
        raise FeedError(f"the data of {choices.url} were not understood: is it another version of pyllmcancel?")
    for line in draw(replicas, choices, Times(state.clock, state.clock), Size(console.width, None)):
        line.rstrip()
        console.print(line, soft_wrap=True)
    return 0


def has_no_model(data: Any) -> bool:
    """Return whether an event says that no model is loaded: there is no snapshot then."""
    if not isinstance(data, dict) or data.get("type") != "models":
        return False
    states = [one.get("status") for one in data.get("models", ()) if isinstance(one, dict)]
    return not any(isinstance(one, dict) and one.get("value") == "loaded" for one in states)


async def first_events(client: httpx.AsyncClient) -> AsyncGenerator[ServerEvent]:
    """Yield the events that the feed begins with; FeedError if there is no feed now."""
    events: asyncio.Queue[ServerEvent | FeedError] = asyncio.Queue()

    def tell(happening: Happening) -> None:
        match happening:
            case ServerEvent():
                events.put_nowait(happening)
            case Lost(why):
                events.put_nowait(FeedError(f"{client.base_url.host}: {why}"))

    async def follow() -> None:
        try:
            await Feed(client).follow(tell)
        except FeedError as error:
            events.put_nowait(error)

    following = asyncio.create_task(follow())
    try:
        while True:
            event = await events.get()
            if isinstance(event, FeedError):
                raise event
            yield event
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
