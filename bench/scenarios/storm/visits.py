"""One client's visit: a request, how its client behaves, and what is wrong with what came of it."""

from __future__ import annotations

import random
import time
from urllib.parse import quote

from bench.scenarios.storm.palette import LOOKING, Body, Kind
from bench.scenarios.storm.stage import Question, Stage, Visit, told
from bench.scenarios.storm.wire import Answer, Reply, Wire, ask, request_bytes

HOLD = "hold=60"
POLL = 0.005  # seconds
PATIENCE = 0.5  # of what a request to be cut lasts; the machine may be faster in the next minute


class Client:
    """A client: one visit after the other, each in a way drawn at random. Belongs to one thread."""

    def __init__(self, stage: Stage, seed: str) -> None:
        self._stage = stage
        self._chance = random.Random(seed)

    def visit(self, way: str) -> list[Visit]:
        """Visit in the way of this name; superseding takes two requests."""
        made: list[Visit] = getattr(self, way)()
        return made

    # -- not cut ------------------------------------------------------------------------------------------------------

    def stays(self, *, slow: bool = False) -> list[Visit]:
        kind, prompt = self._chance.choice(self._stage.palette.kinds), self._chance.choice(self._stage.palette.prompts)
        visit = Visit(self._stage.fresh_id(), "slow" if slow else "stays", kind.name, stays=True)
        with Wire(self._stage.port, slow=slow) as wire:
            wire.send(request_bytes(kind.path, kind.ask(prompt), request_id=visit.id))
            self._judge_whole(visit, wire.read(), (kind.name, prompt))
        return [visit]

    def slow(self) -> list[Visit]:
        return self.stays(slow=True)

    def looks(self) -> list[Visit]:
        """Ask for what computes nothing; every fourth time without waiting for it."""
        path, body = self._chance.choice(LOOKING)
        visit = Visit(self._stage.fresh_id(), "looks", path, expected=(None, "disconnect"))
        with Wire(self._stage.port) as wire:
            wire.send(request_bytes(path, body, request_id=visit.id))
            if self._chance.random() < 0.25:
                wire.leave(reset=self._chance.random() < 0.5)
            elif not (reply := wire.read()).complete:
                visit.fault(f"status {reply.status}, whole: {reply.framed}")
        return [visit]

    def _judge_whole(self, visit: Visit, reply: Reply, question: Question) -> None:
        if reply.status == 429:
            visit.refused, visit.stays, visit.expected = True, False, (None,)
            if "retry-after" not in reply.headers:
                visit.fault("refused without a Retry-After")
        elif not reply.complete:
            visit.fault(f"it was not cancelled, and its answer is not complete: {told(reply)}")
        elif not (answer := Answer.of(reply)).same(known := self._stage.known[question]):
            visit.fault(f"{answer} instead of {known}")
        if reply.ends > 1:
            visit.fault(f"{reply.ends} ends")

    # -- the client hangs up ------------------------------------------------------------------------------------------

    def unsent(self) -> list[Visit]:
        """Leave before the body, or even the head, is sent."""
        visit, data, _ = self._endless("unsent", expected=(None, "disconnect"))
        end = data.index(b"\r\n\r\n") + 4
        cut = self._chance.choice([end // 2, end, len(data) - 1])
        with Wire(self._stage.port) as wire:
            wire.send(data[:cut])
            self._pause()
            wire.leave(reset=self._chance.random() < 0.5)
        return [visit]

    def at_once(self) -> list[Visit]:
        """Leave with the request's last byte: the server may never get to accept it."""
        visit, data, _ = self._endless("at once", expected=(None, "disconnect"))
        with Wire(self._stage.port) as wire:
            wire.send(data)
            wire.leave(reset=self._chance.random() < 0.5)
        return [visit]

    def later(self) -> list[Visit]:
        """Leave at any time: in the queue, in the prompt, in the answer; without having read anything of it."""
        visit, data, _ = self._endless("later", expected=(None, "disconnect"))
        with Wire(self._stage.port, slow=True) as wire:
            wire.send(data)
            self._pause()
            wire.leave(reset=self._chance.random() < 0.5)
            self._note_cut(visit)
        return [visit]

    def half(self) -> list[Visit]:
        """Close the sending half, which counts as leaving, and read what still comes."""
        visit, data, question = self._endless("half-close", expected=(None, "disconnect"))
        with Wire(self._stage.port) as wire:
            wire.send(data)
            self._pause()
            wire.close_half()
            self._note_cut(visit)
            self._judge_left(visit, wire.read(), question)
        return [visit]

    # -- cancelled by the server --------------------------------------------------------------------------------------

    def by_id(self) -> list[Visit]:
        visit, data, question = self._endless("by id", expected=("explicit",))
        self._cancelled(visit, data, question, f"/v1/requests/{visit.id}/cancel")
        return [visit]

    def by_session(self) -> list[Visit]:
        session = f"session {self._stage.fresh_id()}"
        visit, data, question = self._endless("by session", session=session, expected=("explicit",))
        self._cancelled(visit, data, question, cancel_path(session))
        return [visit]

    def _cancelled(self, visit: Visit, data: bytes, question: Question | None, path: str) -> None:
        """Cancel while it runs, or, every fifth time, before it comes."""
        early = self._chance.random() < 0.2
        with Wire(self._stage.port) as wire:
            if not early:
                wire.send(data)
                self._pause()
            said = self._cancel(f"{path}?{HOLD}")
            self._note_cut(visit)
            if early:
                wire.send(data)
            reply = wire.read()
        self._judge_cut(visit, reply, question, "explicit", 499)
        outcome = said.payloads[0]
        if "requests" in outcome:  # a session's
            outcome = next(iter(outcome["requests"]), {"outcome": "held"})
        if not (visit.refused or visit.late) and outcome.get("outcome") not in ("cancelled", "held"):
            visit.fault(f"the endpoint said {said.status} {said.payloads}")
        if outcome.get("phase") == "preparing":
            visit.expected = (None, "explicit")  # with several models, its engine may never have had it

    def in_the_prompt(self) -> list[Visit]:
        """As soon as some of the prompt is computed: leave, or be cancelled."""
        return self._caught("in the prompt", self._stage.palette.telling, self._chance.randrange(1, 3))

    def in_the_answer(self) -> list[Visit]:
        """The same after some events of an answer."""
        streamed = tuple(kind for kind in self._stage.palette.endless if kind.stream)
        return self._caught("in the answer", streamed, self._chance.randrange(2, 8), known=True)

    def _caught(self, where: str, kinds: tuple[Kind, ...], n_events: int, *, known: bool | None = None) -> list[Visit]:
        how = self._chance.choice(("FIN", "RST", "half-close", "by id", "by session"))
        session = f"session {self._stage.fresh_id()}"
        reason = "explicit" if how.startswith("by") else "disconnect"
        visit, data, question = self._endless(
            f"{where}, {how}", kinds=kinds, session=session, known=known, expected=(reason,)
        )
        path = {"by id": f"/v1/requests/{visit.id}/cancel", "by session": cancel_path(session)}.get(how)
        with Wire(self._stage.port, slow=path is None and self._chance.random() < 0.3) as wire:
            wire.send(data)
            if path is not None:
                reply = wire.read(n_events, lambda: self._cancel(path))
                self._judge_cut(visit, reply, question, "explicit", 499)
            else:
                reply = wire.read(n_events, wire.close_half if how == "half-close" else None)
                self._judge_left(visit, reply, question)
                wire.leave(reset=how == "RST")
        return [visit]

    def superseded(self) -> list[Visit]:
        """Send a newer request of the key, whose answer is waited for."""
        session = f"session {self._stage.fresh_id()}"
        visit, data, question = self._endless("superseded", session=session, expected=("superseded",))
        kind, prompt = self._chance.choice(self._stage.palette.kinds), self._chance.choice(self._stage.palette.prompts)
        newer = Visit(self._stage.fresh_id(), "supersedes", kind.name, stays=True)
        with Wire(self._stage.port) as old:
            old.send(data)
            self._until_known(visit, old)
            self._pause()
            # Not connected before: a server does not wait for long for a connection's first byte.
            with Wire(self._stage.port) as new:
                new.send(request_bytes(kind.path, kind.ask(prompt), request_id=newer.id, session=session))
                self._until_known(newer, new)  # on a busy machine the older one may end before the newer one has come
                self._note_cut(visit)
                self._judge_whole(newer, new.read(), (kind.name, prompt))
            if newer.refused or newer.faults:
                old.leave()
                visit.expected = (None, "disconnect", "superseded")
            else:
                self._judge_cut(visit, old.read(), question, "superseded", 499)
        return [visit, newer]

    def deadline(self) -> list[Visit]:
        seconds = self._delay()
        visit, data, question = self._endless("deadline", expected=("deadline",), timeout=seconds)
        with Wire(self._stage.port) as wire:
            wire.send(data)
            self._judge_cut(visit, wire.read(), question, "deadline", 504)
        return [visit]

    def _judge_left(self, visit: Visit, reply: Reply, question: Question | None) -> None:
        """After a hang-up the answer must not look complete."""
        if reply.status == 429:
            visit.refused, visit.expected = True, (None,)
            return
        self._judge_part(visit, reply, question)
        if visit.late:
            return
        if reply.complete or reply.done:
            visit.fault("it left, and its answer looks complete")

    def _judge_cut(self, visit: Visit, reply: Reply, question: Question | None, code: str, status: int) -> None:
        """A cancelled answer says so, once, with what had been used, and does not look complete."""
        if reply.status == 429:
            visit.refused, visit.expected = True, (None,)
            return
        self._judge_part(visit, reply, question)
        if visit.late and reply.complete:
            return
        error = reply.error or {}
        usage = [payload for payload in reply.payloads if payload.get("usage") and "error" in payload]
        streamed = reply.status == 200
        # llama-server's errors have the status there, and the reason beside it.
        if error.get("reason", error.get("code")) != code or not usage or not (streamed or reply.status == status):
            visit.fault(f"it was cancelled ({code}), and its client got {told(reply)}")
        if reply.done or reply.complete or reply.ends != 1:
            visit.fault(f"it was cancelled ({code}), and its answer looks complete, or ends {reply.ends} times")

    # -- what they have in common -------------------------------------------------------------------------------------

    def _endless(
        self,
        way: str,
        *,
        kinds: tuple[Kind, ...] = (),
        session: str | None = None,
        known: bool | None = None,
        expected: tuple[str | None, ...],
        **more: object,
    ) -> tuple[Visit, bytes, Question | None]:
        """A request that takes longer than its client waits: the visit, its bytes, and its question if that is known.

        A known question has a short prompt and a very long answer, any other a long prompt.
        """
        palette = self._stage.palette
        kind = self._chance.choice(kinds or palette.endless)
        if known is None:
            known = kind in palette.kinds and self._chance.random() < 0.5
        prompt = self._chance.choice(palette.prompts if known else palette.long_prompts)
        visit = Visit(self._stage.fresh_id(), way, kind.name, expected)
        body: Body = kind.ask_endless(prompt, known=known) | more
        data = request_bytes(kind.path, body, request_id=visit.id, session=session)
        return visit, data, (kind.name, prompt) if known else None

    def _cancel(self, path: str) -> Reply:
        return ask(self._stage.port, path, {})

    def _judge_part(self, visit: Visit, reply: Reply, question: Question | None) -> None:
        """Check that the text before the cut is the beginning of the known answer."""
        if question is None:
            return
        for got, known in zip(reply.texts(), self._stage.known[question].texts, strict=False):
            size = min(len(got), len(known))
            if got[:size] != known[:size]:
                visit.fault(f"{got!r} does not begin like {known!r}")

    def _until_known(self, visit: Visit, wire: Wire) -> None:
        """Two connections have no order: wait until the engine has the request, or the server has answered it."""
        while not wire.answered():
            entry = ask(self._stage.port, f"/v1/requests/{visit.id}").payloads[0]
            if entry.get("phase", "preparing") != "preparing":
                return
            time.sleep(POLL)

    def _delay(self) -> float:
        """Seconds within which no endless request can end."""
        most = PATIENCE * self._stage.lasting
        return min(self._chance.expovariate(2 / most), most)

    def _note_cut(self, visit: Visit) -> None:
        """Called right after what cuts the request."""
        visit.cut_at = time.monotonic()
        visit.late = visit.cut_at - visit.sent_at > self._stage.lasting

    def _pause(self) -> None:
        time.sleep(self._delay())


def cancel_path(session: str) -> str:
    return f"/v1/sessions/{quote(session)}/cancel"


# By name; how many in a hundred visits.
SHARES: dict[str, int] = {
    "stays": 38,
    "slow": 5,
    "looks": 5,
    "unsent": 4,
    "at_once": 6,
    "later": 7,
    "in_the_prompt": 6,
    "in_the_answer": 7,
    "half": 4,
    "by_id": 6,
    "by_session": 3,
    "superseded": 5,
    "deadline": 4,
}
# These need to see how far their request is.
TOLD = ("in_the_prompt", "in_the_answer")
