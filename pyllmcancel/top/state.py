"""The state of a server, from the events of its feed: no clock, no network, no terminal.

All times are seconds since the epoch by the server's clock, so that they stay valid after a restart of its machine.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pyllmcancel.top.request import MAX_SLOTS, Key, Request, optional, request_of
from pyllmcancel.top.values import finite, is_number, whole

WINDOW = 300.0  # seconds of latencies in the header: the last minutes
RATE_WINDOW = 3.0
KEPT_STEPS, KEPT_ENDED, KEPT_CANCELS, KEPT_EARLY, KEPT_GAPS = 20_000, 200, 20_000, 1_000, 100
KEPT_LIVE = 10_000  # more than a queue holds; a server may report arrivals without ever reporting ends
NOT_UNDERSTOOD = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, slots=True)
class Step:
    """One step, or several of the same sequences. `parts`: slot, phase, tokens."""

    began: float
    ended: float
    aborted: bool
    parts: tuple[tuple[int | None, str, int], ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """A time of which the events are unknown."""

    began: float
    ended: float
    why: str


@dataclass(slots=True)
class Server:
    """The facts of a snapshot about the server itself."""

    version: str = ""
    boot: str = ""
    model: str = ""
    n_slots: int = 0
    n_cells: int = 0
    all_owners: bool = True


@dataclass(slots=True)
class State:
    """The state according to all events; changed by `apply` alone.

    Attributes
    ----------
    clock
        The newest time of any event.
    live
        The live requests, in the order of their arrival.
    sessions
        The parent of each session, as far as it is known.
    not_understood
        The number of events in an unknown form: the server may be of another version.
    replica
        The replica's name, if the server is a front.
    """

    server: Server = field(default_factory=Server)
    clock: float = 0.0
    offset: float = 0.0  # from the server's monotonic clock to the epoch
    known: bool = False
    live: OrderedDict[Key, Request] = field(default_factory=OrderedDict)
    ended: deque[Request] = field(default_factory=lambda: deque(maxlen=KEPT_ENDED))
    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    gaps: deque[Gap] = field(default_factory=lambda: deque(maxlen=KEPT_GAPS))
    cancels: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT_CANCELS))
    stats: dict[str, float] = field(default_factory=dict)
    not_understood: int = 0
    replica: str = ""
    _told_at: float = float("-inf")  # when the snapshot was taken, on the server's monotonic clock
    # cancels that came before their requests
    _early: OrderedDict[Key, dict[str, Any]] = field(default_factory=OrderedDict)

    def apply(self, data: Any) -> None:
        """Take the data of an event."""
        try:
            match data["type"]:
                case "snapshot":
                    self._snapshot(data)
                case "added":
                    self._added(request_of(data["request"]))
                case "admitted":
                    self._admitted(data)
                case "step":
                    self._step(data)
                case "cancelled":
                    self._cancelled(data)
                case "ended":
                    self._ended(request_of(data["request"]))
                case "stats":
                    self.stats = numbers(data)
                case _:
                    return  # an event of a later version
            if "at" in data:
                self.clock = max(self.clock, finite(data.get("until", data["at"])) + self.offset)
        except NOT_UNDERSTOOD:
            self.not_understood += 1

    # -- events -------------------------------------------------------------------------------------------------------

    def _snapshot(self, data: dict[str, Any]) -> None:
        server, model, capacity = data["server"], data["model"], data["capacity"]
        requests = [request_of(entry) for entry in data["requests"]]
        at, boot = finite(data["at"]), str(server["boot"])
        again = self.known and boot == self.server.boot
        self._told_at = at
        if not again:  # otherwise known requests keep their times, by which they are recognised
            self.offset = finite(data["epoch"]) - at
        now = at + self.offset
        if not self.known:
            self.gaps.append(Gap(0.0, now, "nobody was looking"))
        else:
            why = "too much was missed" if again else "the server has started again"
            self.gaps.append(Gap(self.clock, now, why))
        self.server = Server(
            version=str(server["version"]),
            boot=boot,
            model=str(model["id"]),
            n_slots=whole(capacity["slots"]),
            n_cells=whole(capacity["cells"]),
            all_owners=bool(data["all_owners"]),
        )
        seen = {request.key: request.slots for request in (*self.live.values(), *self.ended)}
        self.live.clear()
        self.ended.clear()
        self._early.clear()
        for request in map(self._in_epoch, requests):
            request.slots = request.slots or seen.get(request.key, ())
            if request.live:
                self.live[request.key] = request
            else:
                self._remember(request)
        self.stats = numbers(data.get("stats") or {})
        self.clock, self.known = now, True

    def _added(self, request: Request) -> None:
        request = self._in_epoch(request)
        self.live[request.key] = request
        while len(self.live) > KEPT_LIVE:
            self.live.popitem(last=False)
        early = self._early.pop(request.key, None)
        if early is not None:
            self._cancelled(early)

    def _admitted(self, data: dict[str, Any]) -> None:
        request = self.live.get(self._key_of(data))
        if request is None:
            return
        request.slots = tuple(whole(slot) for slot in data["slots"][:MAX_SLOTS])
        request.cached = whole(data["cached_tokens"])
        request.done = max(request.done, request.cached)
        request.admitted = finite(data["at"]) + self.offset
        if request.status == "waiting":
            request.status, request.phase = "running", "prefill"

    def _step(self, data: dict[str, Any]) -> None:
        if finite(data["until"]) <= self._told_at:
            return  # the snapshot has it
        parts = []
        for part in data["sequences"]:
            slot, phase, n_tokens = part.get("slot"), str(part["phase"]), whole(part["n_tokens"])
            parts.append((None if slot is None else whole(slot), phase, n_tokens))
            request = self._in_step(part["request"], slot)
            if request is None:
                continue
            if slot is not None and slot not in request.slots and len(request.slots) < MAX_SLOTS:
                request.slots = (*request.slots, whole(slot))
            if data["status"] == "ok":
                n_rejected = whole(part.get("n_drafted", 0)) - whole(part.get("n_accepted", 0))
                request.computed(phase, n_tokens - n_rejected)
        began, ended = finite(data["at"]) + self.offset, finite(data["until"]) + self.offset
        self.steps.append(Step(began, ended, data["status"] == "aborted", tuple(parts)))

    def _in_step(self, request_id: str, slot: int | None) -> Request | None:
        """Return the live request of this id; of several owners' requests the one that has the slot."""
        found = [request for request in self.live.values() if request.id == request_id]
        return next((request for request in found if slot in request.slots), found[0] if found else None)

    def _cancelled(self, data: dict[str, Any]) -> None:
        request = self.live.get(self._key_of(data))
        if request is None:
            self._early[self._key_of(data)] = data
            while len(self._early) > KEPT_EARLY:
                self._early.popitem(last=False)
            return
        request.status, request.cancel_reason = "cancelling", optional(data["reason"])
        request.superseded_by = optional(data.get("superseded_by"))

    def _ended(self, request: Request) -> None:
        request = self._in_epoch(request)
        before = self.live.pop(request.key, None)
        if before is not None:
            request.slots = request.slots or before.slots
        self._early.pop(request.key, None)
        self._remember(request)

    def _remember(self, request: Request) -> None:
        """Remember a request that has ended, now or before a snapshot, which may name it again."""
        self.ended.append(request)
        if request.latency_ms is not None:
            cancel = (request.ended or self.clock, request.latency_ms)
            if not self.cancels or cancel[0] > self.cancels[-1][0] or cancel not in self.cancels:
                self.cancels.append(cancel)

    def _in_epoch(self, request: Request) -> Request:
        return replace(
            request,
            replica=self.replica,
            arrived=self._moment(request.arrived),
            admitted=self._moment(request.admitted),
            ended=self._moment(request.ended),
        )

    def _moment(self, at: float | None) -> float | None:
        return None if at is None else at + self.offset

    def _key_of(self, data: dict[str, Any]) -> Key:
        return self.replica, str(data["owner"]), str(data["id"])

    # -- figures ------------------------------------------------------------------------------------------------------

    def rates(self, now: float) -> dict[str, float]:
        """Return tokens a second of each phase, over the last seconds."""
        found = {"prefill": 0.0, "decode": 0.0}
        since = now - RATE_WINDOW
        for step in self.steps_since(since):
            inside = min(1.0, (step.ended - since) / max(step.ended - step.began, 1e-9))
            for _, phase, n_tokens in step.parts:
                if phase in found and not step.aborted:
                    found[phase] += inside * n_tokens / RATE_WINDOW
        return found

    def steps_since(self, began: float) -> Iterator[Step]:
        """Iterate over the steps that had not ended by then, newest first."""
        for step in reversed(self.steps):
            if step.ended <= began:
                return
            yield step

    def latencies(self, now: float) -> list[float]:
        """Return the latencies of the last minutes' cancels in milliseconds, in order."""
        return sorted(latency for ended, latency in self.cancels if ended > now - WINDOW)

    def waiting(self) -> list[Request]:
        return [request for request in self.live.values() if request.waits]

    def running(self) -> list[Request]:
        return [request for request in self.live.values() if not request.waits]


def numbers(data: dict[str, Any]) -> dict[str, float]:
    """Return the fields that are numbers."""
    return {name: value for name, value in data.items() if is_number(value)}
