"""Agents that look at pictures with their own tools, as they do with screenshots: the picture is in a tool's result.

The first picture is answered shortly. The second one's result comes while the server is stopped in the middle of its
encoding; then the user presses Esc, and the server, when it goes on, has nobody to compute for.
"""

import json
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.agents import ESC, claude_terminal, codex_terminal, enter
from tests.clients.clients import BY_NAME, Client
from tests.clients.evidence import refusal
from tests.clients.proxy import Exchange
from tests.clients.session import PATIENCE, Session
from tests.clients.steering import Stage, no_tool, stage_of, steered, tool_results, with_call, with_short_answer
from tests.clients.terminal import Terminal
from tests.support.http_process import ServerProcess
from tests.support.toy_projectors import Eyes, noise_png, write_gemma3

LOOK_PROMPTS = ("Look at one.png.", "Look at two.png.")
PICTURES = ("one.png", "two.png")
SIZE = (480, 320)
# The packaged model's, with half of SigLIP's base tower: a second for a picture, or minutes on a busy machine.
EYES = Eyes(768, 12, 3072, 6, patch=16, side=384, merge=2, text_embd=256, half=True)
ROWS = (EYES.side // EYES.patch // EYES.merge) ** 2
TEMPLATE = Path(__file__).parent / "short_texts.jinja"
IMAGES = {"input_image", "image"}

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent: how it is started, what it draws, and its tool for pictures with the name of the path's argument."""

    name: str
    open: Callable[[Session], AbstractContextManager[Terminal]]
    ready: str
    stopped: str
    tool: str
    argument: str

    @property
    def client(self) -> Client:
        return BY_NAME[self.name]


def claude_reader(session: Session) -> Terminal:
    return claude_terminal(session, tools="Read")


CODEX = Agent("codex", codex_terminal, "Ask Codex", "interrupted", "view_image", "path")
CLAUDE = Agent("claude-code", claude_reader, "for shortcuts", "Interrupted", "Read", "file_path")
AGENTS = {agent.name: agent for agent in (CODEX, CLAUDE)}


@dataclass(frozen=True, slots=True)
class Seen:
    """The tokens of a picture that was answered about, and the end of the encoding of the second one."""

    refused: tuple[str, ...]
    prompt_tokens: int  # of the answered request
    missing_tokens: int  # of the cancelled one, not computed when it ended


def write_eyes(folder: Path) -> tuple[str, ...]:
    """Write the projector; return the server's options for it."""
    projector = write_gemma3(folder / "mmproj.gguf", EYES)
    return ("--mmproj", str(projector), "--chat-template-file", str(TEMPLATE), "--threads", "2")


def look(agent: Agent, server: ServerProcess, folder: Path) -> Seen:
    """Have an agent look at two pictures, and stop it in the encoding of the second."""

    def steering(path: str, body: Body) -> Body:
        return with_looks(agent, session.project, path, body)

    with Session(agent.name, agent.client.environment, server, folder, steering) as session:
        for number, name in enumerate(PICTURES):
            (session.project / name).write_bytes(noise_png(*SIZE, seed=number))
        with agent.open(session) as terminal:
            terminal.until_drawn(agent.ready)
            enter(terminal, LOOK_PROMPTS[0])
            first = session.until_sent(lambda one: pictures_in(one.body) == 1)
            answered = server.wait_for(first.id, PATIENCE, status="finished")
            terminal.until_drawn("done")
            enter(terminal, LOOK_PROMPTS[1])
            second = session.until_sent(lambda one: pictures_in(one.body) == 2)
            leave_in_encoding(server, second, terminal)
            ended = server.wait_for(
                second.id, PATIENCE, status="cancelled", cancel_reason="disconnect", phase="prefill"
            )
            terminal.until_drawn(agent.stopped)
        posts = [one for one in session.proxy.exchanges if one.method == "POST" and one.body]
        refused = tuple(refusal(one) for one in posts if one.status not in {200, None})
        missing = ended["prompt_tokens"] - ended["prompt_tokens_done"]
        return Seen(refused=refused, prompt_tokens=answered["prompt_tokens"], missing_tokens=missing)


def leave_in_encoding(server: ServerProcess, exchange: Exchange, terminal: Terminal) -> None:
    """Stop the server's process in the encoding until the client is gone: an agent takes its time to leave."""
    # A request that has a slot waits for its picture first.
    server.wait_for(exchange.id, PATIENCE, phase="prefill")
    server.signal(signal.SIGSTOP)
    try:
        terminal.press(ESC)
        assert exchange.over.wait(PATIENCE)
    finally:
        server.signal(signal.SIGCONT)


def with_looks(agent: Agent, project: Path, path: str, body: Body) -> Body:
    """Force a call for each picture; after the first the answer is short, after the second it goes on for ever."""
    if stage_of(body) in {Stage.TITLE, Stage.FREE}:
        return steered(path, body)
    conversation = json.dumps(conversation_of(body))
    n_asked = sum(prompt in conversation for prompt in LOOK_PROMPTS)
    n_seen = pictures_in(body)
    if n_seen < n_asked:
        return with_call(path, body, {agent.tool: {agent.argument: str(project / PICTURES[n_seen])}})
    if n_seen == 1:
        return with_short_answer(path, body, {"answer": "done"}) | no_tool(path)
    return body


def conversation_of(body: Body) -> Any:
    return body.get("messages", body.get("input", []))


def pictures_in(body: Body | None) -> int:
    return sum(map(images, tool_results(conversation_of(body)))) if body else 0


def images(part: Any) -> int:
    if isinstance(part, list):
        return sum(map(images, part))
    if isinstance(part, dict):
        return (part.get("type") in IMAGES) + sum(
            images(value) for value in part.values() if not isinstance(value, str)
        )
    return 0
