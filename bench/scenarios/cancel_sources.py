"""The ways in which a request comes to be cancelled, each driven from outside, and what its ending must then say."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bench.scenarios.harness import Body, Server, completion
from bench.scenarios.http_client import Answer, Call
from bench.scenarios.server_log import LogLine

PHASES = ("queue", "prefill", "decode", "finishing")
# What each source's ending names as its reason.
REASONS = {
    "fin": "disconnect",
    "rst": "disconnect",
    "half-close": "disconnect",
    "explicit": "explicit",
    "session": "explicit",
    "supersede": "superseded",
    "deadline": "deadline",
    "hold": "explicit",
}
HANG_UPS = ("fin", "rst", "half-close")
STATUSES = {"explicit": 499, "superseded": 499, "deadline": 504}


@dataclass(frozen=True, slots=True)
class Plan:
    """One cancel: whose, from where, in which phase it is to come (if the request gets there), and how it answers."""

    id: str
    source: str
    phase: str
    stream: bool

    @property
    def session(self) -> str | None:
        return f"session-{self.id}" if self.source in ("session", "supersede") else None

    def body(self, server: Server, chance: random.Random) -> Body:
        """A request that lives long enough to be caught in the planned phase."""
        n_prompt, n_answer = {
            "queue": (96, 96),
            "prefill": (min(1200, server.n_ctx // 2), 32),
            "decode": (24, 256),
            "finishing": (24, 6),
        }[self.phase]
        body = completion(server.prompt(chance, n_prompt), n_answer, stream=self.stream)
        if self.source == "deadline":
            longest = {"queue": 0.03, "prefill": 0.3, "decode": 0.6, "finishing": 0.6}[self.phase]
            body["timeout"] = chance.uniform(0.01, longest)
        return body


@dataclass(slots=True)
class Outcome:
    """What became of a plan.

    Attributes
    ----------
    answer
        What the client saw; None if it had left.
    reported
        What the cancel endpoint said; None for the other sources.
    faults
        What is wrong with it, in words.
    """

    plan: Plan
    ending: LogLine
    answer: Answer | None
    reported: Answer | None
    faults: list[str] = field(default_factory=list)

    @property
    def cancelled(self) -> bool:
        return self.ending.verb == "cancelled"


async def carry_out(
    plan: Plan, server: Server, chance: random.Random, successor: Callable[[str], Awaitable[None]]
) -> Outcome:
    """Send the request, cancel it as planned, and wait for its ending.

    Parameters
    ----------
    successor
        Sends a request in the given session, to supersede, and sees to its answer.
    """
    reported = None
    if plan.source == "hold":
        reported = await server.post(f"/v1/requests/{plan.id}/cancel?hold=30")
    call = await server.complete(plan.body(server, chance), request_id=plan.id, session=plan.session)
    if plan.source not in ("hold", "deadline"):
        await reach(plan, server, call)
    match plan.source:
        case "fin" | "rst":
            call.leave(reset=plan.source == "rst")
        case "half-close":
            call.close_half()
        case "explicit":
            reported = await server.post(f"/v1/requests/{plan.id}/cancel")
        case "session":
            reported = await server.post(f"/v1/sessions/{plan.session}/cancel")
        case "supersede" if plan.session is not None:
            await successor(plan.session)
    ending = await server.log.ending(plan.id)
    answer = None if plan.source in ("fin", "rst") else await call.answer
    outcome = Outcome(plan, ending, answer, reported)
    outcome.faults += faults_of(outcome)
    return outcome


async def reach(plan: Plan, server: Server, call: Call) -> None:
    """Wait until the request is in the planned phase, or past it."""
    await server.log.wait_for(plan.id, "added")
    if plan.phase == "queue":
        return
    if plan.stream and plan.phase in ("decode", "finishing"):
        await call.wait_for_events(2 if plan.phase == "decode" else 5)
        return
    await server.until(plan.id, lambda entry: arrived(plan, entry), every=0.005)


def arrived(plan: Plan, entry: Body) -> bool:
    if entry["status"] not in ("waiting", "running"):
        return True
    wanted = {"prefill": 0, "decode": 2, "finishing": 4}[plan.phase]
    return bool(entry["phase"] != "waiting" and entry["completion_tokens"] >= wanted)


def faults_of(outcome: Outcome) -> list[str]:
    """Whether log, client and endpoint tell the same, and the right, story."""
    plan, ending = outcome.plan, outcome.ending
    if outcome.cancelled:
        found = [] if ending.reason == REASONS[plan.source] else [f"ended as {ending.reason}"]
        found += faults_of_cut(plan, outcome.answer)
        said = "cancelled"
    elif ending.verb == "finished":
        # An end that comes first is nobody's fault, where the cancel was aimed at the end.
        raced = plan.phase == "finishing" or (plan.source == "deadline" and plan.phase != "queue")
        found = [] if raced else ["a lost cancel"]
        whole = outcome.answer is None or outcome.answer.complete or plan.source in HANG_UPS
        found += [] if whole else ["finished, but its client's answer is not complete"]
        said = "already_finished"
    else:
        return [f"failed: {ending.text}"]
    if plan.source in ("explicit", "session") and outcome.reported is not None and outcome.reported.status == 200:
        outcome_said = outcome.reported.body["outcome"]
        found += [] if outcome_said == said else [f"the endpoint said {outcome_said}, the log {ending.verb}"]
    return found


def faults_of_cut(plan: Plan, answer: Answer | None) -> list[str]:
    """A cut answer must say so, with the usage so far, and must not look complete."""
    if answer is None:
        return []
    if answer.complete or answer.done:
        return ["cancelled, but its client takes the answer for complete"]
    if plan.source in HANG_UPS:
        return []
    reason = REASONS[plan.source]
    found = [] if answer.error_code == reason else [f"the client was told {answer.error_code}"]
    found += [] if answer.usage is not None else ["no usage beside the error"]
    if not plan.stream and answer.status != STATUSES[reason]:
        found.append(f"status {answer.status} instead of {STATUSES[reason]}")
    return found
