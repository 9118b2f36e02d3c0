"""llama.vim in Vim, on a terminal, before ``serve --supersede client-ip``: what its user waits for is not superseded.

    git clone https://github.com/ggml-org/llama.vim
    python -m tests.editors.llama_vim --plugin llama.vim                          # the packaged model
    python -m tests.editors.llama_vim --plugin llama.vim -- --model FILE.gguf …   # one that is slower; serve's options

Needs Vim (9.0, with +textprop and +job) and curl; the plugin is not part of this repository. A user types, accepts a
suggestion, has a selection edited by an instruction, saves and changes files, while the plugin warms the cache up; then
the same beside a chat from the same address. Then the user presses Esc in an edit that would go on for ever. Exits with
1 if a request was superseded that its user waited for, if Esc did not end the edit, or if the editor never did what
this is about.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx

from tests.clients.model import serving
from tests.editors.vim import Vim, kind_of
from tests.support.http_process import CHAT, ServerProcess, until

ENDED = ("finished", "cancelled", "failed")
PATIENCE = 300.0  # seconds for the last answers, of a slow model
KINDS = ("suggestion", "edit", "warm-up of suggestions", "warm-up of edits")
ROUNDS = 3
SOURCE = '''"""Shapes."""

import math


class Circle:
    def __init__(self, radius):
        self.radius = radius

    def area(self):
        return math.pi * self.radius ** 2


class Square:
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side ** 2


'''
TYPED = (
    "def perimeter(shape):\n",
    "    if isinstance(shape, Circle):\n",
    "return 2 * math.pi * ",
    "\n\ndef scale(shape, ",
)


# A request as the server lists it, and its `kind`: a suggestion, an edit, a warm-up of either, or a chat.
Sent = dict[str, Any]


class Ledger(AbstractContextManager["Ledger"]):
    """How requests ended, by id: the server remembers the last 256, an hour of typing is more."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._ended: dict[str, dict[str, Any]] = {}
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        with httpx.Client(base_url=self._server.url, timeout=60.0) as client:
            while not self._enough.wait(0.5):
                self._look(client)
            self._look(client)

    def _look(self, client: httpx.Client) -> None:
        for seen in client.get("/v1/requests").json()["data"]:
            if seen["status"] in ENDED:
                self._ended[seen["id"]] = seen

    def of(self, kinds: dict[str, str]) -> list[Sent]:
        """Return those of these requests, by id, that have arrived: the plugin may end its curl before that."""
        return [self._ended[name] | {"kind": kind} for name, kind in kinds.items() if name in self._ended]

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()


def work(vim: Vim) -> None:
    vim.command("b shapes.py")
    vim.press("Go")
    for text in TYPED:
        vim.type(text)
        time.sleep(1.0)  # looks at the suggestion
    vim.press("\t")
    time.sleep(0.5)
    vim.command("w")  # the plugin picks a chunk to warm up with
    edit(vim, "add docstrings")
    vim.command("b other.py")
    vim.press("ggyG")  # another chunk
    vim.press("Go")
    vim.type("value = Circle(3).area()\n")
    vim.command("w")
    time.sleep(3.0)  # warms up in normal mode, once a second
    vim.command("b shapes.py")
    vim.press("gg")
    vim.press("\t")  # accepts the edit, if the cursor is on it


def edit(vim: Vim, instruction: str) -> None:
    """Have the first class edited, and go on typing while it streams."""
    known = set(vim.sent())
    vim.command("6,11LlamaInstruct")
    time.sleep(0.5)
    vim.type(f"{instruction}\r")
    until(lambda: [body for name, body in vim.sent().items() if name not in known and kind_of(body) == "edit"], bool)
    vim.press("Go")
    vim.type("width = Square(2).side\n")
    vim.command("w")


@contextmanager
def chatting(server: ServerProcess, found: list[str]) -> Iterator[None]:
    """Beside the block, another client of the same address chats, one answer after the other; ids go to `found`."""
    enough = threading.Event()

    def chat() -> None:
        with httpx.Client(base_url=server.url, timeout=60.0) as client:
            while not enough.is_set():
                request_id = f"chat-{len(found)}"
                body = {"messages": [{"role": "user", "content": "How do I sort a list?"}], "max_tokens": 400}
                headers = {"X-Request-Id": request_id}
                found.append(request_id)
                with client.stream("POST", CHAT, json=body | {"stream": True}, headers=headers) as answer:
                    answer.read()

    thread = threading.Thread(target=chat)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def session(options: argparse.Namespace, *, beside_chat: bool) -> list[Sent]:
    """A user's session with the editor; all that was asked for meanwhile."""
    chats: list[str] = []
    with tempfile.TemporaryDirectory() as name, ServerProcess("--supersede", "client-ip", *options.serve) as server:
        folder = Path(name)
        files = [folder / "shapes.py", folder / "other.py"]
        files[0].write_text(SOURCE * 4)
        files[1].write_text(SOURCE)
        server.started()
        with Ledger(server) as ledger, Vim(options.vim, options.plugin.resolve(), folder, server.url, files) as vim:
            vim.start()
            with chatting(server, chats) if beside_chat else nullcontext():
                for _ in range(options.rounds):
                    work(vim)
            server.wait_idle(PATIENCE)
            kinds = {name: kind_of(body) for name, body in vim.sent().items()} | dict.fromkeys(chats, "chat")
        server.signal()
        server.wait()
    return ledger.of(kinds)


def stopped_edit(options: argparse.Namespace) -> dict[str, Any]:
    """How an edit ended in which the user presses Esc, and how long after the key, as `after_key`."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(serving(folder, "--supersede", "client-ip", whole_prompts=True))
        file = folder / "shapes.py"
        file.write_text(SOURCE)
        vim = stack.enter_context(Vim(options.vim, options.plugin.resolve(), folder, server.url, [file]))
        vim.start()
        vim.press("6G")  # Esc is about the edit that the cursor is in
        vim.command("6,11LlamaInstruct")
        vim.type("add docstrings\r")
        edits = until(lambda: [name for name, body in vim.sent().items() if kind_of(body) == "edit"], bool)
        server.wait_for(edits[0], PATIENCE, completion_tokens=lambda n: n > 5)
        pressed = time.time()
        vim.press("\x1b")
        seen = server.wait_for(edits[0], status="cancelled")
        return seen | {"after_key": seen["created"] + seen["seconds"] - pressed}


def faults(all_sent: Sequence[Sent], *, beside_chat: bool) -> list[str]:
    """Return what must not have happened, and what should have happened and did not."""
    kinds = {one["id"]: one["kind"] for one in all_sent}
    found = []
    for one in all_sent:
        newer = kinds.get(one["superseded_by"], "something")
        # A suggestion is not waited for any more when the next one is asked for.
        if one["cancel_reason"] == "superseded" and (one["kind"], newer) != ("suggestion", "suggestion"):
            found.append(f"{one['kind']} {one['id']} was superseded by {newer} {one['superseded_by']}")
    found += [f"{one['kind']} {one['id']} failed" for one in all_sent if one["status"] == "failed"]
    expected = {*KINDS, "chat"} if beside_chat else set(KINDS)
    found += [f"there was no {kind}" for kind in sorted(expected - set(kinds.values()))]
    return found


def beside(one: Sent, all_sent: Sequence[Sent], kind: str) -> bool:
    """Return whether a request of that kind began while this one was alive."""
    began = [other["created"] for other in all_sent if other["kind"].startswith(kind)]
    return any(one["created"] < other < one["created"] + one["seconds"] for other in began)


def table(all_sent: Sequence[Sent]) -> str:
    rows = [
        "| | requests | finished | superseded | otherwise cancelled | a warm-up began meanwhile |",
        "|---|---|---|---|---|---|",
    ]
    for kind in sorted({one["kind"] for one in all_sent}):
        own = [one for one in all_sent if one["kind"] == kind]
        reasons = Counter(one["cancel_reason"] for one in own if one["cancel_reason"] is not None)
        others = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if reason != "superseded") or "0"
        finished = sum(one["status"] == "finished" for one in own)
        met = sum(beside(one, all_sent, "warm-up") for one in own)
        rows.append(f"| {kind} | {len(own)} | {finished} | {reasons['superseded']} | {others} | {met} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", type=Path, required=True, help="the folder of llama.vim")
    parser.add_argument("--vim", default="vim", help="the program")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("serve", nargs="*", help="further options of `serve`, after --")
    options = parser.parse_args()
    status = n_beside = 0
    for beside_chat in (False, True):
        all_sent = session(options, beside_chat=beside_chat)
        found = faults(all_sent, beside_chat=beside_chat)
        n_beside += sum(beside(one, all_sent, "warm-up") for one in all_sent if not one["kind"].startswith("warm-up"))
        name = "beside a chat" if beside_chat else "alone"
        lines = "".join(f"FAULT: {fault}\n" for fault in found)
        sys.stdout.write(f"\nllama.vim {name}\n\n{table(all_sent)}\n{lines}")
        status = status or bool(found)
    seen = stopped_edit(options)
    sys.stdout.write(f"\nEsc in an edit: {seen['cancel_reason']}, {seen['after_key'] * 1e3:.0f} ms after the key\n")
    status = status or seen["cancel_reason"] != "disconnect"
    if not n_beside:
        sys.stdout.write("FAULT: nothing was waited for while a warm-up began: take a slower model\n")
    return int(status or not n_beside)


if __name__ == "__main__":
    raise SystemExit(main())
