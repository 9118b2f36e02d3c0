"""Continue's command-line program at a server of several models: its list, an answer, a stop, a model that fails.

    python -m tests.clients.continue_cli --models SMOLLM2.gguf GEMMA3-270M.gguf [--pictures FOLDER]

The first model has to answer at length. `cn` is fetched into build/clients. Pictures need Chromium and Playwright:
python -m tests.browser --install.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.browser.chromium import browsing
from tests.clients.agents import ENTER, ESC
from tests.clients.packages import Environment
from tests.clients.recipes import recipe
from tests.clients.several_models import BROKEN, HEAD, PATIENCE, say, serving_several, state_of, stop_of, until_asked
from tests.clients.terminal import Terminal
from tests.support.http_process import ServerProcess, until
from tests.support.small_png import write_small

CONTINUE = Environment("npm", ("@continuedev/cli@1.5.47",))
MODEL = """\
  - name: {name}
    provider: openai
    model: {name}
    apiBase: {url}/v1
    apiKey: none
    roles: [chat]
"""
DOWN, BACKSPACE = "\x1b[B", "\x7f"
SIZE = (92, 30)
HESITATION = 2.0  # seconds

Photograph = Callable[[Terminal, str], None]


def open_cn(home: Path, server: ServerProcess) -> Terminal:
    names = [one["id"] for one in server.http.get("/v1/models").json()["data"]]
    settings = recipe("Continue", server.url, "docs/editors.md")
    settings += "".join(MODEL.format(name=name, url=server.url) for name in names if f"name: {name}" not in settings)
    config = home / "config.yaml"
    config.write_text(settings)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1"}
    environment |= {"CONTINUE_GLOBAL_DIR": str(home / ".continue"), "CONTINUE_TELEMETRY_ENABLED": "0"}
    return Terminal([CONTINUE.programs / "cn", "--config", config], environment, home, SIZE)


def visit(terminal: Terminal, server: ServerProcess, model: str, photograph: Photograph) -> None:
    terminal.until_drawn("Model: ", PATIENCE)
    choose(terminal, model, photograph)
    ask(terminal, "Write a long story about a lighthouse.")
    waiting = until_asked(server, lambda one: one["phase"] == "loading")
    answering = until_asked(server, lambda one: one["id"] == waiting["id"] and one["completion_tokens"] > 40)
    photograph(terminal, "answers")
    pressed = terminal.press(ESC)
    say(HEAD, stop_of(server, answering["id"], pressed).row("an answer"))
    terminal.until_drawn("Interrupted")
    photograph(terminal, "stopped")
    choose(terminal, BROKEN, None)
    ask(terminal, "What is the capital of France?")
    terminal.until_drawn("GGUF", PATIENCE)
    photograph(terminal, "failed")
    say(f"{BROKEN}: {state_of(server, BROKEN)}; {model}: {state_of(server, model)}")


def choose(terminal: Terminal, model: str, photograph: Photograph | None) -> None:
    ask(terminal, "/model")
    terminal.until_drawn("➤")
    if photograph is not None:
        photograph(terminal, "models")
    while f"➤ {model}" not in terminal.drawn:
        before = terminal.drawn
        terminal.press(DOWN)
        until_changed(terminal, before)
    time.sleep(HESITATION)  # the program takes a key for what it drew before
    terminal.press(ENTER)
    terminal.until_drawn(f"Switched to model: {model}")


def ask(terminal: Terminal, text: str) -> None:
    """Type it and press Enter. The program misses keys while it draws its input anew."""
    until(lambda: is_typed(terminal, text), bool, PATIENCE)
    terminal.press(ENTER)


def is_typed(terminal: Terminal, text: str) -> bool:
    terminal.type(text)
    try:
        terminal.until_drawn(f"● {text}", 10)
    except TimeoutError:
        terminal.type(BACKSPACE * len(text))
        return False
    return True


def until_changed(terminal: Terminal, before: str) -> None:
    until(lambda: terminal.drawn, lambda drawn: drawn != before)


def photographing(stack: ExitStack, folder: Path | None) -> Photograph:
    """Return what writes pictures into a folder, if there is one."""
    if folder is None:
        return lambda _terminal, _name: None
    folder.mkdir(parents=True, exist_ok=True)
    page = stack.enter_context(browsing()).new_page(viewport={"width": 900, "height": 600})

    def photograph(terminal: Terminal, name: str) -> None:
        page.set_content(terminal.page)
        write_small(page.locator("pre").screenshot(), folder / f"continue-{name}.png")

    return photograph


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, nargs=2, required=True, metavar="GGUF")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="take pictures into FOLDER")
    options = parser.parse_args()
    CONTINUE.fetch()
    with ExitStack() as stack:
        home, models = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
        photograph = photographing(stack, options.pictures)
        server = stack.enter_context(serving_several(models, options.models))
        terminal = stack.enter_context(open_cn(home, server))
        visit(terminal, server, options.models[0].stem, photograph)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
