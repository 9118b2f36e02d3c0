"""Open WebUI at a server of several models: its list, a stop, a switch, a load that is left, a model that fails.

    python -m tests.clients.open_webui --models SMOLLM2.gguf GEMMA3-270M.gguf [--pictures FOLDER]

The first model has to answer at length, the second shortly. Open WebUI is fetched into build/clients, which takes
minutes and 3 GB. It does not ask for titles, tags and follow-ups, as it does unless an administrator changes that.
Needs Chromium and Playwright: python -m tests.browser --install.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.browser import installation
from tests.browser.chromium import Tab, browsing, expect
from tests.clients.evidence import say
from tests.clients.model import ENVIRONMENT, PACKAGED_MODEL
from tests.clients.packages import Environment
from tests.clients.recipes import exports
from tests.support.http_process import ServerProcess, until
from tests.support.small_png import write_small

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE = 300.0  # seconds for a load and an answer on a busy machine
CODER, BROKEN = "stdlib-coder", "broken"


HEAD = (
    "| stopped | phase | prompt tokens | tokens | ms until the server noticed | until the computation ended |\n"
    f"{'|---' * 6}|"
)


@contextmanager
def serving_several(folder: Path, models: Sequence[Path]) -> Iterator[ServerProcess]:
    """Serve these models, the packaged one and the broken one from `folder`, with room for one."""
    for model in (PACKAGED_MODEL, *models):
        (folder / model.name).symlink_to(model.resolve())
    (folder / f"{BROKEN}.gguf").write_bytes(b"this is no model")
    with ServerProcess("--models-dir", str(folder), "--models-max", "1", environment=ENVIRONMENT) as server:
        yield server.started()


def state_of(server: ServerProcess, model: str) -> str:
    status = server.http.get(f"/v1/models/{model}").json()["status"]
    return "failed" if status.get("failed") else str(status["value"])


def until_state(server: ServerProcess, model: str, state: str) -> None:
    until(lambda: state_of(server, model), lambda found: found == state, PATIENCE)


def until_asked(server: ServerProcess, accept: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Wait until a request is live that is as it should be; of several, return the last."""

    def found() -> list[dict[str, Any]]:
        answer = server.http.get("/v1/requests")
        listed = answer.json()["data"] if answer.status_code == 200 else []  # while a model's process ends
        return [one for one in listed if one["status"] in {"waiting", "running"} and accept(one)]

    return max(until(found, len, PATIENCE), key=lambda one: one["created"])


def stop_of(server: ServerProcess, request_id: str, pressed: float) -> str:
    """Return a row of the table: where a request was that ended after `pressed`, by the wall clock, and when it did."""
    seen = server.wait_for(request_id, status="cancelled")
    assert seen["cancel_reason"] == "disconnect", seen
    times, offset = seen["times"], time.time() - time.monotonic()
    noticed, ended = ((times[name] + offset - pressed) * 1e3 for name in ("cancelled", "ended"))
    facts = (f"{seen['prompt_tokens']:,}", seen["completion_tokens"], f"{noticed:.0f}", f"{ended:.0f}")
    return " | ".join(map(str, ("| an answer", seen["phase"], *facts, "")))


OPEN_WEBUI = Environment("pip", ("open-webui==0.12.4",))
# Besides those of the recipe: it asks nobody but the server, and wants no password.
SETTINGS = {
    "WEBUI_AUTH": "False",
    "ENABLE_OLLAMA_API": "False",
    "RAG_EMBEDDING_ENGINE": "openai",
    "OFFLINE_MODE": "True",
    "HF_HUB_OFFLINE": "1",
    "ENABLE_VERSION_UPDATE_CHECK": "False",
    "ANONYMIZED_TELEMETRY": "False",
    "DO_NOT_TRACK": "True",
    "WEBUI_SECRET_KEY": "a secret of 32 bytes, or of more.",
}
NO_TASKS = dict.fromkeys(("ENABLE_TITLE_GENERATION", "ENABLE_TAGS_GENERATION", "ENABLE_FOLLOW_UP_GENERATION"), "False")
SIZE = {"width": 860, "height": 560}
REMEMBER_CLICKS = "document.addEventListener('click', () => { window.pressed = Date.now(); }, true)"
START_PATIENCE = 900.0  # seconds: it imports PyTorch and more
LONG, SHORT = "Write a long story about a lighthouse.", "What is the capital of France?"


class Window:
    """A window of Open WebUI, with a new conversation."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.page: Page = browser.new_page(base_url=url, viewport=SIZE, color_scheme="light")
        self.page.set_default_timeout(PATIENCE * 1e3)
        # A user is told once what is new in the release.
        news = self.page.get_by_role("button", name="Okay, Let's Go!")
        self.page.add_locator_handler(news, lambda button: button.click())
        self.page.goto("/")
        self.page.evaluate(REMEMBER_CLICKS)

    def models(self) -> list[str]:
        self.page.locator("#model-selector-model-button").click()
        options = self.page.get_by_role("option")
        expect(options.first).to_be_visible()
        return [str(one.get_attribute("data-value")) for one in options.all()]

    def ask(self, model: str, text: str) -> None:
        self.models()
        self.page.get_by_role("option", name=f"Select {model} model").click()
        self.page.locator("#chat-input").click()
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")
        expect(self.page.get_by_role("button", name="Stop")).to_be_visible()

    def stop(self) -> float:
        self.page.get_by_role("button", name="Stop").click()
        return float(self.page.evaluate("window.pressed")) / 1e3


class Visit:
    """A user's way through Open WebUI, with pictures and figures."""

    def __init__(
        self, browser: Browser, url: str, server: ServerProcess, models: list[str], pictures: Path | None
    ) -> None:
        self.browser, self.url, self.server, self.pictures = browser, url, server, pictures
        self.long, self.short = models

    def window(self) -> Window:
        return Window(self.browser, self.url)

    def picture(self, page: Page, name: str) -> None:
        page.wait_for_timeout(700)  # animations
        if self.pictures is not None:
            write_small(page.screenshot(), self.pictures / f"open-webui-{name}.png")

    def look(self) -> None:
        window = self.window()
        listed, found = [one["id"] for one in self.server.http.get("/v1/models").json()["data"]], window.models()
        assert found == listed, found
        self.picture(window.page, "models")
        say(f"listed: {', '.join(found)}")

    def stop_and_switch(self) -> None:
        """Stop one model's answer, for whose end a chat with another model waits."""
        first, second = self.window(), self.window()
        began = time.monotonic()
        first.ask(self.long, LONG)
        answering = until_asked(
            self.server, lambda one: one.get("replica") == self.long and one["completion_tokens"] > 40
        )
        say(f"{self.long}: loaded and at its 40th token after {time.monotonic() - began:.1f} s")
        second.ask(self.short, SHORT)
        until_asked(self.server, lambda one: one["phase"] == "loading")
        self.picture(second.page, "waits")
        self.picture(first.page, "answers")
        engine = Tab(self.browser, self.server.url, viewport={"width": 1100, "height": 800}).open("engine")
        engine.wait_for_timeout(1500)
        self.picture(engine, "engine")
        assert state_of(self.server, self.long) == "loaded"
        pressed = first.stop()
        say(HEAD, stop_of(self.server, answering["id"], pressed))
        until_state(self.server, self.short, "loaded")
        assert state_of(self.server, self.long) == "unloaded"
        say(f"{self.short}: loaded {time.time() - pressed:.1f} s after the click, and {self.long} is unloaded")
        expect(second.page.get_by_role("button", name="Stop")).to_have_count(0, timeout=PATIENCE * 1e3)
        self.picture(second.page, "answered")

    def leave_a_load(self) -> None:
        """Stop a chat whose model is being loaded."""
        window = self.window()
        window.ask(CODER, SHORT)
        until_state(self.server, CODER, "loading")
        pressed = window.stop()
        seen = until(lambda: state_of(self.server, CODER), lambda state: state != "loading", PATIENCE)
        say(f"a load that was left: {seen} {(time.time() - pressed) * 1e3:.0f} ms after the click")

    def fail(self) -> None:
        """Ask a model whose file is none, while another one is loaded."""
        self.server.http.post("/models/load", json={"model": self.short})
        until_state(self.server, self.short, "loaded")
        window = self.window()
        window.ask(BROKEN, SHORT)
        expect(window.page.get_by_text("is not a GGUF file").first).to_be_visible()
        self.picture(window.page, "failed")
        say(f"{BROKEN}: {state_of(self.server, BROKEN)}; {self.short}: {state_of(self.server, self.short)}")


@contextmanager
def open_webui(folder: Path, server: ServerProcess) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = (
        SETTINGS | NO_TASKS | {name: shlex.split(value)[0] for name, value in exports("Open WebUI", server.url).items()}
    )
    settings |= {"DATA_DIR": str(folder), "HOME": str(folder), "PATH": os.environ["PATH"]}
    command = [str(OPEN_WEBUI.programs / "open-webui"), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, env=settings, cwd=folder, stdout=log, stderr=log) as process,
    ):
        url = f"http://127.0.0.1:{port}"
        try:
            until(lambda: process.poll() is not None or answers(url), bool, START_PATIENCE)
            assert process.poll() is None, (folder / "log").read_text()
            yield url
        finally:
            process.terminate()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, nargs=2, required=True, metavar="GGUF")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="take pictures into FOLDER")
    options = parser.parse_args()
    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
    if (problem := installation.missing()) is not None:
        sys.stderr.write(f"{problem}\n")
        return 1
    OPEN_WEBUI.fetch()
    with tempfile.TemporaryDirectory() as place:
        models, data = Path(place, "models"), Path(place, "data")
        models.mkdir()
        data.mkdir()
        with (
            serving_several(models, options.models) as server,
            open_webui(data, server) as url,
            browsing() as browser,
        ):
            names = [model.stem for model in options.models]
            visit = Visit(browser, url, server, names, options.pictures)
            for part in (visit.look, visit.leave_a_load, visit.fail, visit.stop_and_switch):
                part()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
