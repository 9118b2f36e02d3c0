"""The command ``pyllmcancel top``: the live screen, or a single output if there is no screen."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import time
from contextlib import ExitStack

import httpx
from rich.console import Console
from rich.live import Live

from pyllmcancel.system import leave
from pyllmcancel.top.client import ServerError, cancel, open_client, read
from pyllmcancel.top.keys import Keyboard
from pyllmcancel.top.view import N_OTHER_LINES, View, draw, key_of

INTERVAL = 1.0  # seconds between two readings
HUNG_UP = 128 + 1  # the exit status of a program whose terminal is gone: 1 is SIGHUP


def run(arguments: argparse.Namespace) -> int:
    """Show the server; return the exit status: 1 if that is impossible."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False, markup=False, emoji=False)
    try:
        with open_client(arguments.url, arguments.api_key or "") as client:
            view = View(str(client.base_url).rstrip("/"), read(client))
            if not console.is_terminal or console.is_dumb_terminal:
                view.keys = ""
                console.print(draw(view, console.width, None))
                return 0
            return App(client, console, view).run()
    except ServerError as error:
        sys.stderr.write(f"pyllmcancel: {error}\n")
    return 1


class App:
    """The program on a terminal. Call `run` once."""

    def __init__(self, client: httpx.Client, console: Console, view: View) -> None:
        self.view = view
        self._client = client
        self._console = console
        self._live = Live(console=console, screen=True, auto_refresh=False)
        self._keyboard = Keyboard(sys.stdin.fileno()) if sys.stdin.isatty() else None
        if self._keyboard is None:
            view.keys = ""
        self._row = 0  # the row of the selection, used after its request has ended
        self._next_reading = time.monotonic() + INTERVAL
        self._over = False

    def run(self) -> int:
        """Run until the user or a signal ends the program; return the exit status."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, leave)
        signal.signal(signal.SIGTSTP, self._suspend)
        try:
            with ExitStack() as stack:
                if self._keyboard is not None:
                    stack.enter_context(self._keyboard)
                stack.enter_context(self._live)
                while not self._over:
                    self._turn()
        except OSError:  # the terminal is gone
            return HUNG_UP
        return 0

    def _turn(self) -> None:
        self._show()
        wait = max(0.0, self._next_reading - time.monotonic())
        if self._keyboard is None:
            time.sleep(wait)
        else:
            for key in self._keyboard.pressed(wait):
                self.press(key)
        if time.monotonic() >= self._next_reading:
            self._read()

    def _show(self) -> None:
        n_rows = self._console.height - N_OTHER_LINES
        self._live.update(draw(self.view, self._console.width, n_rows), refresh=True)

    def _read(self) -> None:
        view = self.view
        try:
            view.reading, view.before, view.problem = read(self._client), view.reading, ""
        except ServerError as error:
            view.problem = f"trying again: {error}"
        self._next_reading = time.monotonic() + INTERVAL

    def _suspend(self, _number: int, _frame: object) -> None:
        """Handle Ctrl-Z: give the terminal back, and stop until the shell continues the program."""
        self._live.stop()
        if self._keyboard is not None:
            self._keyboard.leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        if self._keyboard is not None:
            self._keyboard.enter()
        self._live.start(refresh=True)

    def press(self, key: str) -> None:
        """Do the action of a key."""
        self.view.message = ""
        match key:
            case "q":
                self._over = True
            case "down" | "j":
                self._select(1)
            case "up" | "k":
                self._select(-1)
            case "c" | "s":
                self._cancel(whole_session=key == "s")

    def _select(self, by: int) -> None:
        keys = [key_of(entry) for entry in self.view.live()]
        if self.view.selected in keys:
            self._row = keys.index(self.view.selected) + by
        self._row = min(max(self._row, 0), max(0, len(keys) - 1))
        self.view.selected = keys[self._row] if keys else None

    def _cancel(self, *, whole_session: bool) -> None:
        # The selection never moves by itself: a key that is pressed a moment too late must not hit another request.
        entry = next((one for one in self.view.live() if key_of(one) == self.view.selected), None)
        if entry is None:
            self.view.message = "nothing is selected: choose a request with up and down"
        elif whole_session and entry["session"] is None:
            self.view.message = "the request has no session"
        else:
            kind, name = ("sessions", entry["session"]) if whole_session else ("requests", entry["id"])
            self.view.message = "cancelling …"
            self._show()
            self.view.message = cancel(self._client, kind, name, entry["owner"])
            self._next_reading = 0.0
