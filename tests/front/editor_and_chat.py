"""An editor that completes code and a chat, on two models of one server: who waits for whom, and how many loads.

    python -m tests.front.editor_and_chat --chat SMOLLM2.gguf [--models-max 1] [--seconds 120] [--picture FILE.png]

The editor sends llama-server's `/infill` at each key, with a supersede key, to the packaged model. The person at the
chat asks again some seconds after each answer. Printed is a table for docs/measured/clients.md. The picture is one of
the page's view Engine while the editor computes, and the chat computes, too, or waits for room.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from pyllmcancel.models import packaged_model_path
from tests.browser.chromium import Tab, browsing
from tests.browser.scenes import Look
from tests.support.http_process import ServerProcess
from tests.support.small_png import write_small

if TYPE_CHECKING:
    from playwright.sync_api import Page

PRESET = "[coder]\nmodel = {coder}\nalias = fim\n[chat]\nmodel = {chat}\n"
CODE = 'class Settings:\n    """Settings kept in a file."""\n\n    def save(self, path):\n        '
TYPED = "with open(path, 'w') as file:\n            json.dump(self.values, file, indent=2)\n            "
SUFFIX = "\n\n    def load(self, path):\n        self.values = json.loads(path.read_text())\n"
QUESTIONS = (
    "Write a short story about a lighthouse.",
    "Explain what a hash table is.",
    "What is the capital of France?",
)
KEY_SECONDS = (0.12, 0.45)  # between two keys
LINE_SECONDS = (2.0, 6.0)  # after a line: the person thinks
READ_SECONDS = (4.0, 12.0)  # after an answer of the chat
LOOK = Look("light", 1280, 1010)
FIRST_LOADS_SECONDS, SHOWN_SECONDS = 45.0, 4.0  # before the picture


@dataclass(slots=True)
class Asked:
    """The requests of one client, each with the seconds to its first token, and those that it waited for a load."""

    first: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    superseded: int = 0
    failed: int = 0

    def row(self, name: str) -> str:
        ordered = sorted(self.first)
        p50, p90 = (ordered[int(share * (len(ordered) - 1))] if ordered else float("nan") for share in (0.5, 0.9))
        waits = f"{len(self.loads)}, {max(self.loads, default=0.0):.1f} s at most"
        return (
            f"| {name} | {len(self.first)} | {self.superseded} | {waits} | {p50:.2f} s | {p90:.2f} s"
            f" | {max(ordered, default=0.0):.1f} s | {self.failed} |"
        )


class Run:
    """The two clients, and what the server says of its models meanwhile."""

    def __init__(self, url: str, seconds: float) -> None:
        self.url = url
        self.editor, self.chat = Asked(), Asked()
        self.story: list[str] = []
        self._began = time.monotonic()
        self._ends = self._began + seconds
        self._over = threading.Event()
        self._threads = [threading.Thread(target=one) for one in (self._type, self._talk)]
        self._watcher = threading.Thread(target=self._watch)

    def start(self) -> None:
        for thread in (self._watcher, *self._threads):
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        self._over.set()
        self._watcher.join()

    @property
    def n_loads(self) -> int:
        return sum(line.endswith(" loaded") for line in self.story)

    def goes_on(self) -> bool:
        return time.monotonic() < self._ends

    def _ask(self, asked: Asked, path: str, body: dict[str, object]) -> None:
        began, first = time.monotonic(), None
        with (
            httpx.Client(base_url=self.url, timeout=None) as http,
            http.stream("POST", path, json=body | {"stream": True}) as answer,
        ):
            if "x-model-load-ms" in answer.headers:
                asked.loads.append(int(answer.headers["x-model-load-ms"]) / 1e3)
            code = None if answer.status_code == 200 else code_of(json.loads(answer.read()))
            for line in answer.iter_lines() if code is None else ():
                if line.startswith("data: {"):
                    code = code_of(json.loads(line.removeprefix("data: ")))
                    first = first or time.monotonic() - began
        asked.superseded += code == "superseded"
        asked.failed += code not in (None, "superseded")
        if first is not None and code is None:
            asked.first.append(first)

    def _type(self) -> None:
        """Each key is a request, which nobody waits for: the next key supersedes it."""
        chance, keys = random.Random(1), list[threading.Thread]()
        while self.goes_on():
            for at in range(1, len(TYPED) + 1):
                body = {"model": "fim", "input_prefix": CODE + TYPED[:at], "input_suffix": SUFFIX, "n_predict": 24}
                body |= {"supersede": "editor", "cache_prompt": True}
                keys.append(threading.Thread(target=self._ask, args=(self.editor, "/infill", body)))
                keys[-1].start()
                self._over.wait(chance.uniform(*(LINE_SECONDS if TYPED[at - 1] == "\n" else KEY_SECONDS)))
                if not self.goes_on():
                    break
        for key in keys:
            key.join()

    def _talk(self) -> None:
        chance = random.Random(2)
        while self.goes_on():
            message = {"role": "user", "content": chance.choice(QUESTIONS)}
            self._ask(self.chat, "/v1/chat/completions", {"model": "chat", "messages": [message], "max_tokens": 120})
            self._over.wait(chance.uniform(*READ_SECONDS))

    def _watch(self) -> None:
        """Note each change of a model's state."""
        known: dict[str, str] = {}
        with httpx.stream("GET", f"{self.url}/v1/events?types=models", timeout=None) as feed:
            for line in feed.iter_lines():
                if line.startswith("data: "):
                    for model in json.loads(line.removeprefix("data: "))["models"]:
                        state = model["status"]["value"]
                        if known.get(model["id"], "unloaded") != state:
                            self.story.append(f"{time.monotonic() - self._began:6.1f} s  {model['id']} {state}")
                        known[model["id"]] = state
                if self._over.is_set():
                    return


def photograph(run: Run, page: Page, path: Path) -> None:
    """Take the picture when both clients have been at work for some seconds."""
    chat, since = None, 0.0
    page.wait_for_timeout(FIRST_LOADS_SECONDS * 1e3)
    while run.goes_on() and (chat is None or time.monotonic() < since + SHOWN_SECONDS):
        page.wait_for_timeout(100)
        found = chat_beside_the_editor(run.url)
        if found not in {None, chat}:
            chat, since = found, time.monotonic()
    LOOK.show(page)
    write_small(page.screenshot(), path)


def chat_beside_the_editor(url: str) -> str | None:
    """Return the chat's request that computes, or waits for a load, while the editor computes."""
    listed = httpx.get(f"{url}/v1/requests").json()["data"]
    live = [one for one in listed if one["status"] in {"waiting", "running"}]
    if not any(one["supersede"] is not None and one["phase"] in {"prefill", "decode"} for one in live):
        return None
    return next((one["id"] for one in live if one["supersede"] is None), None)


def code_of(event: dict[str, Any]) -> str | None:
    """Return the code of an error, which has another name in llama-server's shape; None if it is none."""
    error = event.get("error", {})
    return error.get("reason", error.get("code"))  # type: ignore[no-any-return]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chat", type=Path, required=True, metavar="GGUF", help="the model that chats")
    parser.add_argument("--models-max", type=int, default=1, metavar="N", help="room for N models [1]")
    parser.add_argument("--seconds", type=float, default=120.0, help="for which both ask [120]")
    parser.add_argument("--picture", type=Path, metavar="PNG", help="take a picture of the page meanwhile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        preset = Path(folder) / "models.ini"
        preset.write_text(PRESET.format(coder=packaged_model_path(), chat=options.chat.absolute()))
        given = ("--models-preset", str(preset), "--models-max", str(options.models_max), "--sse-ping-interval", "1")
        with ServerProcess(*given) as server:
            server.started()
            run = Run(server.url, options.seconds)
            if options.picture is None:
                run.start()
            else:
                with browsing() as browser:
                    page = Tab(browser, server.url).open("engine")
                    run.start()
                    photograph(run, page, options.picture)
            run.join()
    write = sys.stdout.write
    write(f"{options.models_max} of 2 models at once, {options.seconds:.0f} s: {run.n_loads} loads\n")
    write("".join(f"  {line}\n" for line in run.story))
    columns = ("client", "answered", "superseded", "waited for a load", "first token, p50", "p90", "longest", "failed")
    write(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n")
    write(f"{run.editor.row('editor')}\n{run.chat.row('chat')}\n")
    return int(run.editor.failed + run.chat.failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
