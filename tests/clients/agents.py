"""Clients that are programs: a user at a terminal gives them a task, and presses the key that stops them."""

import json
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from tests.clients.recipes import exports, recipe
from tests.clients.session import Session
from tests.clients.steering import CALL_PROMPT, LONG_PROMPT
from tests.clients.terminal import Terminal

ESC, ENTER = "\x1b", "\r"


def codex(session: Session) -> float:
    with codex_terminal(session) as terminal:
        return converse(session, terminal, ready="Ask Codex", stopped="interrupted")


def codex_terminal(session: Session) -> Terminal:
    home = session.home / ".codex"
    home.mkdir()
    trusted = f'\n[projects."{session.project}"]\ntrust_level = "trusted"\n'
    (home / "config.toml").write_text(recipe("Codex CLI", session.url) + trusted)
    command = [str(session.packages.programs / "codex"), "--dangerously-bypass-approvals-and-sandbox"]
    return Terminal(command, session.environment(), session.project)


def claude_code(session: Session) -> float:
    with claude_terminal(session, tools="Bash") as terminal:
        return converse(session, terminal, ready="for shortcuts", stopped="Interrupted")


def claude_terminal(session: Session, *, tools: str) -> Terminal:
    trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
    state = {"hasCompletedOnboarding": True, "theme": "dark", "projects": {str(session.project): trusted}}
    (session.home / ".claude.json").write_text(json.dumps(state))
    environment = session.environment(**exports("Claude Code", session.url), DISABLE_AUTOUPDATER="1")
    command = [str(session.packages.programs / "claude"), "--allowedTools", tools]
    return Terminal(command, environment, session.project)


def opencode(session: Session) -> float:
    (session.project / "opencode.json").write_text(recipe("OpenCode", session.url))
    # What it would look for on the web.
    offline = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    command = [str(session.packages.programs / "opencode")]
    with Terminal(command, session.environment(**offline), session.project) as terminal:
        return converse(session, terminal, ready="Ask anything", stopped="interrupted", asks_again="again to interrupt")


def converse(session: Session, terminal: Terminal, *, ready: str, stopped: str, asks_again: str | None = None) -> float:
    """Have it call a tool, then stop it in a long answer; when the key was pressed that stopped it."""
    terminal.until_drawn(ready)
    enter(terminal, CALL_PROMPT)
    session.until_answered()
    terminal.until_drawn("done")
    enter(terminal, LONG_PROMPT)
    turn = session.until_generating()
    left_at = terminal.press(ESC)
    if asks_again is not None:
        terminal.until_drawn(asks_again)
        left_at = terminal.press(ESC)
    session.until_stopped(turn)
    terminal.until_drawn(stopped)
    return left_at


def enter(terminal: Terminal, prompt: str) -> None:
    terminal.type(prompt)
    terminal.until_drawn(prompt)
    terminal.press(ENTER)


def llm(session: Session) -> float:
    (session.home / "extra-openai-models.yaml").write_text(recipe("llm", session.url))
    environment = session.environment(LLM_USER_PATH=str(session.home))
    command = [str(session.packages.programs / "llm"), "-m", "pyllmcancel"]
    say = 'def say(text: str) -> str:\n    "Say a text."\n    return text\n'
    subprocess.run([*command, "--functions", say, CALL_PROMPT], env=environment, check=True, capture_output=True)
    return interrupted(session, [*command, LONG_PROMPT], environment)


def interrupted(session: Session, command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Press Ctrl-C in the middle of the long answer; when that was."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        turn = session.until_generating()
        left_at = time.time()
        process.send_signal(signal.SIGINT)
        session.until_stopped(turn)
    return left_at
