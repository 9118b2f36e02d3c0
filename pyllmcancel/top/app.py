"""The program on a terminal: the feed, the keys and the screen, in one event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any

import httpx

from pyllmcancel.sse import ServerEvent
from pyllmcancel.top.choices import Choices, Size, Times
from pyllmcancel.top.client import cancel_request, cancel_session
from pyllmcancel.top.feed import Connected, Feed, Happening, Lost
from pyllmcancel.top.keys import Keyboard, KeyDecoder
from pyllmcancel.top.replicas import Replicas
from pyllmcancel.top.screen import Screen
from pyllmcancel.top.state import State
from pyllmcancel.top.text import duration, plain
from pyllmcancel.top.values import read_json
from pyllmcancel.top.view import draw

TICK = 0.25  # seconds between two drawings while nothing happens: a column of the lanes
SHORTEST = 0.1  # between two drawings
HUNG_UP = 128 + 1  # the exit status of a program whose terminal is gone: 1 is SIGHUP
LAG = 0.5  # the feed is written a few times a second, so newer events are not known yet


class Clock:
    """The server's time at this moment, by the events that have come and our own monotonic clock."""

    def __init__(self) -> None:
        self._offset = 0.0
        self._known = False

    def hear(self, moment: float, *, again: bool) -> None:
        """Take an event's time, which cannot be later than now; `again`: the clock is another server's."""
        offset = moment - time.monotonic()
        self._offset = offset if again or not self._known else max(self._offset, offset)
        self._known = True

    def at(self, ours: float) -> float:
        return ours + self._offset


class App:
    """The program. Call `run` once; everything here happens in its event loop."""

    def __init__(self, client: httpx.AsyncClient, screen: Screen, keyboard: Keyboard | None, choices: Choices) -> None:
        self.replicas = Replicas()
        self.choices = choices
        self._client = client
        self._screen = screen
        self._keyboard = keyboard
        self._decoder = KeyDecoder()
        self._clock = Clock()
        self._lost_at: float | None = None
        self._retry_at = 0.0
        self._why_lost = ""
        self._row = 0  # the row of the selection, used after its request has ended
        self._changed = asyncio.Event()
        self._over = asyncio.Event()
        self._status = 1
        self._asking: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> State:
        """The state of the replica that is shown."""
        return self.replicas.shown

    async def run(self) -> int:
        """Run until the user, a signal or a FeedError ends the program; return the exit status."""
        if sys.platform == "win32":
            raise NotImplementedError("the screen needs signals of POSIX")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._end, 128 + number)
        loop.add_signal_handler(signal.SIGWINCH, self._redraw)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        if self._keyboard is not None:
            loop.add_reader(self._keyboard.descriptor, self._on_keys)
        working: list[Coroutine[Any, Any, Any]] = [
            Feed(self._client).follow(self._tell),
            self._draw(),
            self._over.wait(),
        ]
        tasks = [asyncio.create_task(each) for each in working]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._keyboard is not None:
                loop.remove_reader(self._keyboard.descriptor)
            for task in (*tasks, *self._asking):
                task.cancel()
            await asyncio.gather(*tasks, *self._asking, return_exceptions=True)
        for task in tasks:
            if not task.cancelled():
                task.result()
        return self._status

    def _end(self, status: int) -> None:
        self._status = status
        self._over.set()

    # -- the feed -----------------------------------------------------------------------------------------------------

    def _tell(self, happening: Happening) -> None:
        match happening:
            case Connected():
                self._lost_at = None
            case Lost(why, wait):
                now = time.monotonic()
                self._lost_at = now if self._lost_at is None else self._lost_at
                self._why_lost, self._retry_at = why, now + wait
            case event:
                self._apply(event)
        self._changed.set()

    def _apply(self, event: ServerEvent) -> None:
        data = read_json(event.data)
        n_gaps = {name: len(state.gaps) for name, state in self.replicas.states.items()}
        state = self.replicas.apply(data)
        if state is self.state:
            self._clock.hear(state.clock, again=event.name == "snapshot")
        if len(state.gaps) > max(1, n_gaps.get(state.replica, 0)):
            gap = state.gaps[-1]
            self.choices.message = f"{gap.why}: {duration(gap.ended - gap.began)} were missed"

    def _link(self, now: float) -> str:
        if self._lost_at is None:
            return "connected" if self.state.known else "connecting"
        wait = max(0.0, self._retry_at - now)
        return f"{self._why_lost}: again in {wait:.0f} s" if wait >= 0.5 else f"{self._why_lost}: trying again"

    # -- the screen ---------------------------------------------------------------------------------------------------

    async def _draw(self) -> None:
        await self._changed.wait()  # no screen for a server that cannot be reached
        while True:
            self._changed.clear()
            try:
                self._show()
            except OSError:  # the terminal is gone
                self._end(HUNG_UP)
                return
            await asyncio.sleep(SHORTEST)
            try:
                async with asyncio.timeout(TICK - SHORTEST):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _show(self) -> None:
        now = time.monotonic()
        heard = now if self._lost_at is None else self._lost_at
        self.choices.link, self.choices.lost = self._link(now), self._lost_at is not None
        if self.state.not_understood and not self.choices.message:
            self.choices.message = (
                f"{self.state.not_understood} events were not understood: is the server of another version?"
            )
        times = Times(self._clock.at(now - LAG), self._clock.at(heard - LAG))
        self._screen.show(draw(self.replicas, self.choices, times, Size(*self._screen.size)))

    def _redraw(self) -> None:
        self._screen.forget()
        self._changed.set()

    def _suspend(self) -> None:
        """Handle Ctrl-Z: give the terminal back, and stop until the shell continues the program."""
        if sys.platform == "win32":
            raise NotImplementedError("the screen needs signals of POSIX")
        self._screen.leave()
        if self._keyboard is not None:
            self._keyboard.leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        if self._keyboard is not None:
            self._keyboard.enter()
        self._redraw()

    # -- the keys -----------------------------------------------------------------------------------------------------

    def _on_keys(self) -> None:
        assert self._keyboard is not None
        data = self._keyboard.read()
        if not data:
            self._end(HUNG_UP)
        for key in self._decoder.feed(data):
            self.press(key)
        self._changed.set()

    def press(self, key: str) -> None:
        """Do the action of a key."""
        match key:
            case "q":
                self._end(0)
            case "?":
                self.choices.help = not self.choices.help
            case "down" | "j":
                self._select(1)
            case "up" | "k":
                self._select(-1)
            case "r":
                self.replicas.choose_next()
                self._clock = Clock()
                self._clock.hear(self.state.clock, again=True)
            case "c" | "s" if not self.choices.help:
                self._cancel(whole_session=key == "s")

    def _select(self, by: int) -> None:
        keys = [request.key for request in (*self.replicas.running(), *self.replicas.waiting())]
        if not keys:
            self.choices.selected = None
            return
        if self.choices.selected in keys:
            self._row = keys.index(self.choices.selected) + by
        self._row = min(max(self._row, 0), len(keys) - 1)
        self.choices.selected = keys[self._row]

    def _cancel(self, *, whole_session: bool) -> None:
        # The selection never moves by itself: a key that is pressed a moment too late must not hit another request.
        request = None if self.choices.selected is None else self.replicas.find(self.choices.selected)
        if request is None:
            self.choices.message = "nothing is selected: choose a request with up and down"
        elif not whole_session:
            self._ask(cancel_request(self._client, request.id, request.owner), f"cancelling {request.id}")
        elif request.session is None:
            self.choices.message = f"{plain(request.id)} has no session"
        else:
            asking = cancel_session(self._client, request.session, request.owner)
            self._ask(asking, f"cancelling session {request.session}")

    def _ask(self, asking: Coroutine[Any, Any, str], meanwhile: str) -> None:
        self.choices.message = plain(meanwhile)

        async def ask() -> None:
            self.choices.message = await asking
            self._changed.set()

        task = asyncio.create_task(ask())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
