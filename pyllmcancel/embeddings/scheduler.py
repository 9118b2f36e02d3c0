"""The choice of texts for the next step of an embedder. Used by the engine thread only.

Owners take turns, and so do the requests of an owner, text by text: a request of a thousand texts does not delay one of
a single text. A step is as large as is efficient, within its time limit. A larger text that cannot be split goes alone.
Texts of different LoRA adapters are never open together: those that come later begin when the others are done.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from pyllmcancel.scheduling.fair_share import FairShare
from pyllmcancel.scheduling.scheduler import Occupancy
from pyllmcancel.scheduling.step_cost import StepCostModel, chunk_size
from pyllmcancel.step import StepItem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyllmcancel._native import CancelFlag, Embedder
    from pyllmcancel.config import EngineConfig
    from pyllmcancel.embeddings.request import EmbeddingRequest, Text
    from pyllmcancel.requests.request import Request


class TextScheduler:
    """Slots of an embedder, and the texts that hold them. A step takes `max_step_seconds`, where texts allow it."""

    def __init__(self, embedder: Embedder, config: EngineConfig) -> None:
        self._embedder = embedder
        self._config = config
        self._on_cpu = not embedder.model.is_offloaded
        self._free = list(range(embedder.n_seq_max))
        # By seq_id, in the order in which they were begun; the next step continues with these.
        self._open: dict[int, Text] = {}
        # Requests with texts that are not begun, least recently served first.
        self._waiting: deque[EmbeddingRequest] = deque()
        # By owner: the time when it began its last text, counted in texts.
        self._last_begun: dict[str, int] = {}
        self._n_begun = 0
        self._n_started = Counter[str]()  # by owner: the number of its requests among the `parallel` started ones
        # Texts of a failed step, each to be computed alone until the one that makes steps fail is known.
        self._suspects: deque[int] = deque()
        self.cost = StepCostModel()
        self.n_preempted = 0
        self.shares = FairShare()  # about the order of owners by which their requests begin

    def occupancy(self) -> Occupancy:
        return Occupancy(len(self._open), self._embedder.n_cells_used)

    def holds(self, seq: int) -> bool:
        return seq in self._open

    def text(self, seq: int) -> Text:
        return self._open[seq]

    def choose(self, heads: Sequence[Request]) -> Request | None:
        """Return the next request of the owner with the fewest started ones; the first of an owner needs no place."""
        request = min(heads, key=lambda request: self._n_started[request.owner])
        has_place = self._n_started.total() < self._config.parallel or not self._n_started[request.owner]
        return request if has_place else None

    def add(self, request: EmbeddingRequest) -> None:
        self._n_started[request.owner] += 1
        if request.not_begun:
            self._waiting.append(request)

    def set_aside(self, request: EmbeddingRequest) -> None:
        """Begin no text of a request until it is added again; its open texts begin anew then."""
        for text in reversed([text for text in request.texts if text.seq is not None]):
            self._restart_later(text)
        self._n_started[request.owner] -= 1
        if request in self._waiting:
            self._waiting.remove(request)

    def remove(self, request: EmbeddingRequest) -> None:
        """Take an ended request out, with all its open texts."""
        self._n_started[request.owner] -= not request.paused
        for text in request.texts:
            if text.seq is not None:
                self.release(text)
        if request in self._waiting:
            self._waiting.remove(request)

    def release(self, text: Text) -> None:
        """Give back the slot, and the cells, of a text that is done or cancelled."""
        assert text.seq is not None
        seq, text.seq = text.seq, None
        del self._open[seq]
        self._embedder.close(seq)
        self._free.append(seq)

    def resync(self, items: list[StepItem]) -> None:
        """Take over what the embedder has committed, after a step that did not count."""
        for item in items:
            self._open[item.seq].n_committed = self._embedder.n_committed(item.seq)

    def suspect(self, seqs: Iterable[int]) -> None:
        self._suspects = deque(seqs)

    def recover_from_no_room(self) -> bool:
        """Make room by restarting the newest text later; False if there is no other."""
        if len(self._open) < 2:
            return False
        text = next(reversed(self._open.values()))
        self._restart_later(text)
        self.n_preempted += 1
        if text.request not in self._waiting:
            self._waiting.append(text.request)
        return True

    def maintain(self) -> None: ...

    def maintain_idle(self) -> bool:
        return False

    def _restart_later(self, text: Text) -> None:
        self.release(text)
        text.n_committed = 0
        text.request.not_begun.appendleft(text)

    def plan(self) -> list[StepItem]:
        """Return the next step's items, empty when nothing is running."""
        while self._suspects:
            text = self._open.get(self._suspects.popleft())
            if text is not None:
                return self._items([text], self._embedder.n_batch)
        n_batch = self._embedder.n_batch
        requests = [text.request for text in self._open.values()] or self._waiting
        idle = any(request.is_idle for request in requests)  # all are then
        budget = chunk_size(
            self.cost,
            n_decodes=0,
            n_batch=n_batch,
            itl_target=0.0,
            max_step=self._config.max_step_seconds,
            tiled=self._on_cpu,
            idle=idle,
        )
        if self._embedder.splits:
            # Long texts leave half of each step to new ones, and take the rest.
            newcomers = self._begin(budget // 2 if self._open else budget)
            begun = {item.seq for item in newcomers}
            rest = [text for seq, text in self._open.items() if seq not in begun]
            return newcomers + self._shared_items(rest, budget - n_tokens(newcomers))
        items = self._items(self._open.values(), budget)
        return items + self._begin(budget - n_tokens(items), alone=not items)

    def _shared_items(self, texts: Iterable[Text], budget: int) -> list[StepItem]:
        """Return parts of open texts, at most `budget` tokens: equally many per owner, unless an owner has fewer."""
        by_owner = defaultdict[str, list["Text"]](list)
        for text in texts:
            by_owner[text.request.owner].append(text)
        smallest_first = sorted(by_owner.values(), key=lambda own: sum(text.n_pending for text in own))
        items: list[StepItem] = []
        for place, own in enumerate(smallest_first):
            own_items = self._items(own, -(-budget // (len(smallest_first) - place)))
            items += own_items
            budget -= n_tokens(own_items)
        return items

    def _items(self, texts: Iterable[Text], budget: int) -> list[StepItem]:
        """Return parts of open texts, at most `budget` tokens, but all of a first text that cannot be split."""
        waiting = list(texts)
        items: list[StepItem] = []
        for place, text in enumerate(waiting):
            share = -(-budget // (len(waiting) - place)) if self._embedder.splits else budget
            size = self._part(text, share, alone=not items)
            if size:
                items.append(StepItem(cast("int", text.seq), size))
                budget -= size
        return items

    def _begin(self, budget: int, *, alone: bool = True) -> list[StepItem]:
        """Open texts in turn as long as they fit; the first one that does not fit is first in the next step."""
        items: list[StepItem] = []
        for request in self._entitled():
            if any(text.request.adapters != request.adapters for text in self._open.values()):
                break
            size = self._part(request.not_begun[0], budget, alone=alone and not items)
            if not size or not self._free or not self._cells_for(request.not_begun[0]):
                break
            text = request.not_begun.popleft()
            self._open_text(text)
            items.append(StepItem(cast("int", text.seq), size))
            budget -= size
            self._waiting.remove(request)
            if request.not_begun:
                self._waiting.append(request)
            self._n_begun += 1
            self._last_begun[request.owner] = self._n_begun
        return items

    def _entitled(self) -> Iterable[EmbeddingRequest]:
        """Iterate over the requests whose turn it is. A request in the middle of a long text begins no other."""
        while True:
            busy = {id(text.request) for text in self._open.values() if text.n_committed}
            waiting = (request for request in self._waiting if id(request) not in busy)
            request = min(waiting, key=self._precedence, default=None)
            if request is None:
                return
            yield request

    def _precedence(self, request: EmbeddingRequest) -> tuple[int, int]:
        """Sort key: the owner whose last text began longest ago; within an owner the highest priority."""
        return self._last_begun.get(request.owner, 0), -request.priority

    def _part(self, text: Text, budget: int, *, alone: bool) -> int:
        """Return how many tokens of `text` fit; with `alone` a text that cannot be split always fits."""
        if self._embedder.splits:
            return max(0, min(text.n_pending, budget))
        return text.n_pending if alone or text.n_pending <= budget else 0

    def _cells_for(self, text: Text) -> bool:
        """Return whether all open texts, at their full lengths, leave enough cells for this one."""
        if not self._open or not self._embedder.n_ctx:
            return True
        taken = sum(len(other.tokens) for other in self._open.values())
        return taken + len(text.tokens) <= self._embedder.n_ctx

    def _open_text(self, text: Text) -> None:
        seq = self._free.pop()
        flag = cast("CancelFlag", text.request.cancellation.flag)
        self._embedder.open(seq, text.tokens, flag, adapters=text.request.adapters)
        text.seq, text.n_committed = seq, 0
        self._open[seq] = text


def n_tokens(items: list[StepItem]) -> int:
    return sum(item.n_tokens for item in items)
