"""The headers of agents and their sub-agents, as recorded from runs of the programs that are named: one cancel of the
agent's session ends the requests of its sub-agents, and of nobody else.

Each agent was asked to start two sub-agents; their requests went on until the user pressed Esc, or beyond that.
"""

from dataclasses import dataclass

import pytest

from pyllmcancel.server.config import ApiKey
from pyllmcancel.server.limits import MAX_SESSION_ID
from tests.support.http_asgi import Exchange
from tests.support.http_world import World, open_world

COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
CLAUDE, NESTED, BELOW = "642e9caa-ed48-4824-98d6-a7c206eb6403", "ae3d761615806496c", "ab098c17af46607cd"
CODEX, SPAWNED = "01a22618-c6a9-7550-b0b5-f82e87f42e17", "01a22618-c794-7852-8b07-427d116081d4"
OPENCODE, TASK = "ses_dd9f2d42cffefx3DF7bS0SFodO", "ses_dd9f26771ffeb2gcq4Fj51VpxP"
KILO, KILO_TASK = "ses_dd9f00fa8ffeqYgSx5ZO2WqYA2", "ses_dd9effb46ffeGR9Kh3BYEzNQc7"
Headers = dict[str, str]


def codex(thread: str, **more: str) -> Headers:
    headers = {"session-id": CODEX, "thread-id": thread, "x-client-request-id": thread}
    return headers | {"x-codex-window-id": f"{thread}:0"} | {name.replace("_", "-"): more[name] for name in more}


def opencode(session: str, **more: str) -> Headers:
    """Kilo Code's are the same."""
    headers = {"x-session-affinity": session, "x-session-id": session}
    return headers | {name.replace("_", "-"): more[name] for name in more}


@dataclass(frozen=True, slots=True)
class Agent:
    """`below` are the requests of its sub-agents, each with its session and that of its parent."""

    path: str
    session: str
    own: Headers
    below: tuple[tuple[Headers, str, str], ...]


CLAUDE_OWN = {"X-Claude-Code-Session-Id": CLAUDE}
CLAUDE_NESTED = CLAUDE_OWN | {"x-claude-code-agent-id": NESTED}
CLAUDE_BELOW = CLAUDE_OWN | {"x-claude-code-agent-id": BELOW, "x-claude-code-parent-agent-id": NESTED}
AGENTS = {
    "claude-code 2.1.197": Agent(
        MESSAGES,
        CLAUDE,
        CLAUDE_OWN,
        ((CLAUDE_NESTED, f"{CLAUDE}:{NESTED}", CLAUDE), (CLAUDE_BELOW, f"{CLAUDE}:{BELOW}", f"{CLAUDE}:{NESTED}")),
    ),
    "codex 0.171.0": Agent(
        COMPLETIONS,
        CODEX,
        codex(CODEX),
        ((codex(SPAWNED, x_codex_parent_thread_id=CODEX, x_openai_subagent="collab_spawn"), SPAWNED, CODEX),),
    ),
}
for name, session, task in (("opencode 1.18.33", OPENCODE, TASK), ("kilo 7.7.9", KILO, KILO_TASK)):
    below = (opencode(task, x_parent_session_id=session), task, session)
    AGENTS[name] = Agent(COMPLETIONS, session, opencode(session), (below,))
agents = pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)


def endless(world: World, path: str, name: str, headers: Headers, key: str = "mine") -> Exchange:
    fields = {"max_tokens": 100, "ignore_eos": True}
    asked = {"messages": [{"role": "user", "content": "go on"}]} if path == MESSAGES else {"prompt": "go on"}
    headers = headers | {"x-request-id": name, "authorization": f"Bearer {key}"}
    return world.begin("POST", path, asked | fields, headers=headers)


@agents
@pytest.mark.parametrize("esc", [False, True], ids=["cancelled", "left"])
async def test_sub_agents_end_with_their_agent(agent: Agent, esc: bool) -> None:
    """By one cancel of the agent's session, and by Esc, with which Claude Code, OpenCode and Kilo Code close all
    connections.
    """
    authorized = {"authorization": "Bearer mine"}
    async with open_world(parallel=8, api_keys=(ApiKey("me", "mine"), ApiKey("you", "yours"))) as world:
        world.hold()
        exchanges = [endless(world, agent.path, "own", agent.own)]
        exchanges += [endless(world, agent.path, f"below-{n}", one[0]) for n, one in enumerate(agent.below)]
        stranger = endless(world, agent.path, "stranger", agent.below[0][0], "yours")
        for name in ("own", *(f"below-{n}" for n in range(len(agent.below))), "stranger"):
            await world.added(name)
        listed = {one["id"]: one for one in (await world.get("/v1/requests", headers=authorized)).json()["data"]}
        assert "stranger" not in listed
        assert (listed["own"]["session"], listed["own"]["parent_session"]) == (agent.session, None)
        for n, (_, session, parent) in enumerate(agent.below):
            assert (listed[f"below-{n}"]["session"], listed[f"below-{n}"]["parent_session"]) == (session, parent)
            assert listed[f"below-{n}"]["supersede"] is None
        if esc:
            for exchange in exchanges:
                exchange.leave()
        else:
            path = f"/v1/sessions/{agent.session}/cancel?wait=false"
            assert (await world.post(path, headers=authorized)).status == 200
        world.gate.open()
        for exchange in exchanges:
            await exchange.end()
        for one in (await world.get("/v1/requests", headers=authorized)).json()["data"]:
            assert one["cancel_reason"] == ("disconnect" if esc else "explicit")
        assert (await stranger.end()).status == 200


@pytest.mark.parametrize(
    ("headers", "session", "parent"),
    [
        (CLAUDE_BELOW | {"x-session-id": "mine"}, "mine", None),
        (CLAUDE_BELOW | {"x-parent-session-id": "mine"}, f"{CLAUDE}:{BELOW}", "mine"),
        ({"x-claude-code-agent-id": NESTED}, None, None),
        (CLAUDE_OWN | {"x-claude-code-agent-id": "n" * (MAX_SESSION_ID + 1)}, CLAUDE, None),
        (CLAUDE_OWN | {"x-claude-code-agent-id": "n" * MAX_SESSION_ID}, None, None),
        ({"X-Claude-Code-Session-Id": "n" * (MAX_SESSION_ID + 1)}, None, None),
        (codex(SPAWNED, x_codex_parent_thread_id="\xff"), SPAWNED, CODEX),
        ({"thread-id": "7", "session-id": "1", "x-codex-parent-thread-id": "1"}, None, None),
        ({"agent-session-id": "20261129_1"}, "20261129_1", None),  # Goose's, of its source
    ],
)
async def test_what_is_no_agents_name_counts_as_missing(
    world: World, headers: Headers, session: str | None, parent: str | None
) -> None:
    exchange = await world.begin("POST", COMPLETIONS, {"prompt": "x", "max_tokens": 1}, headers=headers).end()
    assert exchange.status == 200
    entry = (await world.requests())[0]
    assert (entry["session"], entry["parent_session"]) == (session, parent)


async def test_a_parent_that_does_not_fit_is_ignored_if_an_agents_headers_imply_it() -> None:
    """A request beside a sub-agent's own may lack the header of its parent; it is answered, and the family stays."""
    async with open_world(parallel=3, api_keys=(ApiKey("me", "mine"),)) as world:
        world.hold()
        below = endless(world, MESSAGES, "below", CLAUDE_BELOW)
        await world.added("below")
        beside = {name: value for name, value in CLAUDE_BELOW.items() if "parent" not in name}
        other = endless(world, MESSAGES, "beside", beside)
        await world.added("beside")
        authorized = {"authorization": "Bearer mine"}
        found = (await world.get(f"/v1/sessions/{CLAUDE}:{BELOW}", headers=authorized)).json()
        assert (found["parent"], found["requests"]) == (f"{CLAUDE}:{NESTED}", ["below", "beside"])
        world.gate.open()
        assert [(await one.end()).status for one in (below, other)] == [200, 200]
