"""The pictures of the live page in the documents: the engine at work, a chat, and a server of several models."""

import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from pyllmcancel.models import packaged_model_path
from tests.browser.chromium import Browser, Page, Tab, browsing, expect
from tests.browser.load import under_load
from tests.browser.models import PROGRAM, Models, standing_in
from tests.browser.scenes import SCHEMES, Look, say, what_is_too_wide
from tests.support.http_process import COMPLETIONS, ServerProcess

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
ENGINE = {f"engine-{scheme}": Look(scheme, 1280, 780) for scheme in SCHEMES}
CHAT = {"chat-light": Look("light", 1280, 800), "chat-phone-dark": Look("dark", 390, 844)}
MODELS = {"models-engine-light": Look("light", 1280, 860)}
MODELS_SECONDS = 20  # of requests before the picture
SHOWN_SECONDS = 35  # a little more than the timeline shows
PRESET = """
[chat]
model = {chat}
alias = smollm2
parallel = 2
[coder]
model = {coder}
alias = fim
parallel = 2
[writer]
model = {chat}
ctx-size = 4096
[gone]
model = /models/gone.gguf
"""
CLIENTS = ("editor", "editor", "agent", "agent", "chat", "batch")
PROMPTS = ("Write a story about a lighthouse. ", "def parse(line):\n", "The three laws of robotics are ", "Dear Sir, ")
QUESTIONS = ("What is the capital of France? Answer in one sentence.", "Write a Python function that adds two numbers.")
LONG_QUESTION = "Write a long story about a lighthouse."


def take(model: Path, folder: Path = FOLDER) -> int:
    """Take a chat with `model`, and the engine with the packaged model; return 1 if the page has faults."""
    folder.mkdir(parents=True, exist_ok=True)
    # Sampled as `serve smollm2` does.
    options = ("--model", str(model), "--alias", "smollm2", "--temp", "0.2", "--top-p", "0.9")
    faults: list[str] = []
    with browsing() as browser:
        for given, take_some in ((options, take_chat), ((), take_engine)):
            with ServerProcess(*given) as process:
                faults += take_some(browser, process.started(), folder)
        faults += take_models(browser, model, folder)
    sys.stdout.writelines(f"FAULT: {fault}\n" for fault in faults)
    return int(bool(faults))


def take_models(browser: Browser, model: Path, folder: Path) -> list[str]:
    """Take a server of several models, two of which are loaded, while a chat waits for a third one."""
    with tempfile.TemporaryDirectory() as place:
        preset = Path(place) / "models.ini"
        preset.write_text(PRESET.format(chat=model.absolute(), coder=packaged_model_path()))
        environment = standing_in("writer", Path(place))
        with ServerProcess("--models-preset", str(preset), environment=environment, program=PROGRAM) as process:
            return take_loads(browser, Models(process.started()), folder)


def take_loads(browser: Browser, models: Models, folder: Path) -> list[str]:
    for name, state in (("chat", "loaded"), ("coder", "loaded"), ("gone", "failed")):
        models.load(name)
        models.until_state(name, state)
    server = models.server
    engine, chat = Tab(browser, server.url), Tab(browser, server.url)
    page = chat.open("chat")
    page.get_by_role("button", name="Model:").click()
    page.get_by_role("menuitemradio", name="writer").click()
    say(page, LONG_QUESTION)
    expect(page.get_by_role("progressbar")).to_be_visible()
    page = engine.open("engine")
    with (
        under_load(server, ["agent"], model="chat"),
        under_load(server, ["editor"], max_tokens=60, again=True, model="coder"),
    ):
        page.wait_for_timeout(MODELS_SECONDS * 1e3)
        faults = photograph(page, MODELS, folder)
    for tab in (engine, chat):
        tab.close()
    return faults + engine.faults + chat.faults


def take_chat(browser: Browser, server: ServerProcess, folder: Path) -> list[str]:
    tab = Tab(browser, server.url)
    page = tab.open("chat")
    for question in QUESTIONS:
        say(page, question)
        expect(page.locator("article[aria-busy=true]")).to_have_count(0)
    say(page, LONG_QUESTION)
    expect(page.locator("article[aria-busy=true] .answer-figures")).to_contain_text("tokens/s")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".cut.stopped")).to_contain_text("compute stopped after")
    faults = photograph(page, CHAT, folder)
    tab.close()
    return faults + tab.faults


def take_engine(browser: Browser, server: ServerProcess, folder: Path) -> list[str]:
    tab = Tab(browser, server.url)
    page = tab.open("engine")
    with leavers(server):
        page.wait_for_timeout(SHOWN_SECONDS * 1e3)
        faults = photograph(page, ENGINE, folder)
    tab.close()
    return faults + tab.faults


def photograph(page: Page, looks: dict[str, Look], folder: Path) -> list[str]:
    """Take a view in these looks, each with the name of its picture; return what is wider than the window."""
    faults: list[str] = []
    for name, look in looks.items():
        look.show(page)
        faults += what_is_too_wide(page)
        path = folder / f"{name}.png"
        page.screenshot(path=path)
        sys.stdout.write(f"{path}\n")
    return faults


@contextmanager
def leavers(server: ServerProcess) -> Iterator[None]:
    """Run clients that stream answers, most of which they leave after a while."""
    stopping = threading.Event()
    threads = [
        threading.Thread(target=keep_leaving, args=(server, session, random.Random(seed), stopping))
        for seed, session in enumerate(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def keep_leaving(server: ServerProcess, session: str, chance: random.Random, stopping: threading.Event) -> None:
    with httpx.Client(base_url=server.url, timeout=4, headers={"X-Session-Id": session}) as http:
        while not stopping.is_set():
            prompt = chance.choice(PROMPTS) * chance.choice((1, 10, 40, 80))
            body = {"prompt": f"{chance.random()} {prompt}", "max_tokens": 1000, "ignore_eos": True, "stream": True}
            leaves_at = time.monotonic() + chance.uniform(0.3, 4)
            # A client leaves the queue by its time-out.
            with suppress(httpx.ReadTimeout), http.stream("POST", COMPLETIONS, json=body) as answer:
                for _ in answer.iter_raw():
                    if time.monotonic() > leaves_at or stopping.is_set():
                        break
