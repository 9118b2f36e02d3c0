"""A verified fake of ``pyllmcancel._native``: the same contract, no llama.cpp, and steps that a test can hold.

Verified: ``tests/native/test_contract_*.py`` run one set of tests against this module and the compiled one.

A step ahead computes when it is collected, in the thread that collects: as if it took long, in the real module, and the
order of events is the same in every run.

What the real module has not: `Context.gate` holds steps, `Context.before_open` runs when a request is admitted,
`Context.faults` and `Context.next_status` make steps fail, and `Context.step_cost` replaces measured times, which no
test can foresee, in the abort policy.
"""

from __future__ import annotations

import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from pyllmcancel.adapters import Scales
from pyllmcancel.errors import ContextBusy, ContextError, UsageError
from pyllmcancel.step import MOST_EXTRA_OUTPUTS, LogitFault, SampledToken, StepItem, StepResult, StepRow, StepStatus
from tests.support.fake_cells import Cells
from tests.support.fake_media import Audience, MediaChunk, MediaEncoder, image_size
from tests.support.fake_model import CancelFlag, Model, Sampler, check_token
from tests.support.step_gate import N_POLLS, GatedSteps, HeldStep, worth_aborting

__all__ = [
    "Audience",
    "CancelFlag",
    "Context",
    "MediaChunk",
    "MediaEncoder",
    "Model",
    "Sampler",
    "SwappedPrefix",
    "image_size",
    "worth_aborting",
]
BYTES_PER_CELL = 1 << 10
SCALES: dict[int, Scales] = {}  # by a checksum, as cells name them


def n_common(known: Sequence[int], tokens: Sequence[int]) -> int:
    """How many leading tokens are the same; never the last of `tokens`."""
    pairs = list(zip(known, tokens[:-1], strict=False))
    return next((n for n, (mine, theirs) in enumerate(pairs) if mine != theirs), len(pairs))


def whole(media: Sequence[tuple[int, MediaChunk]], n_tokens: int) -> int:
    """The longest prefix of at most `n_tokens` that ends inside no picture where none may."""
    inside = (start for start, chunk in media if start < n_tokens < start + chunk.n_tokens and not chunk.divisible)
    return next(inside, n_tokens)


def check_media(media: Sequence[tuple[int, MediaChunk]], first: int, n_tokens: int, *, alone: bool) -> None:
    """Raise UsageError unless the tokens are all text, or rows of one encoded picture that nothing else is beside."""
    for start, chunk in media:
        end = start + chunk.n_tokens
        if end <= first or start >= first + n_tokens:
            continue
        if start > first or end < first + n_tokens or not alone:
            raise UsageError("a step computes text, or one picture")
        if not chunk.encoded:
            raise UsageError("a picture is not encoded")
        if chunk.non_causal and n_tokens < chunk.n_tokens:
            raise UsageError("a picture whose rows look ahead is computed in one step")


@dataclass(slots=True)
class FakeSequence:
    """`cells` has an id for each committed token, shared as cells are; `made` the adapters that computed each."""

    tokens: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    made: list[Scales] = field(default_factory=list)
    open: bool = False
    n_described: int = 0
    media: list[tuple[int, MediaChunk]] = field(default_factory=list)
    sampler: Sampler | None = None
    flag: CancelFlag | None = None
    logits: np.ndarray | None = None
    adapters: Scales = ()
    adapted_from: int = 0

    @property
    def scales(self) -> Scales:
        """The adapters that compute the next token."""
        return self.adapters if len(self.cells) >= self.adapted_from else ()


@dataclass(slots=True)
class StepAhead:
    """A step that has begun by itself, and the thread that may do nothing but collect it."""

    parts: tuple[StepItem, ...]
    costs: tuple[float, float]
    ends: list[tuple[int, frozenset[int]]]
    thread: int = field(default_factory=threading.get_ident)


class SwappedPrefix:
    """As the real one. Its state shows its tokens, so that a wrong one is found when it is swapped in."""

    def __init__(
        self,
        tokens: Sequence[int],
        least: int = 1,
        media: Sequence[tuple[int, MediaChunk]] = (),
        made: Sequence[Scales] = (),
    ) -> None:
        self.tokens, self.least, self.media = list(tokens), least, list(media)
        self.made = list(made) or [()] * len(tokens)
        self.n_tokens, self.n_bytes = len(self.tokens), BYTES_PER_CELL * len(self.tokens)
        self.parts = [(self.n_tokens, memoryview(state_of(self.tokens, self.made)))]

    @staticmethod
    def blank(
        tokens: Sequence[int], least: int, parts: Sequence[tuple[int, int]]
    ) -> tuple[SwappedPrefix, list[memoryview]] | None:
        prefix = SwappedPrefix(tokens, least)
        if [tuple(part) for part in parts] != [(prefix.n_tokens, prefix.n_bytes)] or not 1 <= least <= prefix.n_tokens:
            raise UsageError("the states of a prefix do not fit its tokens")
        state = memoryview(bytearray(prefix.n_bytes))
        prefix.parts = [(prefix.n_tokens, state)]
        return prefix, [state]

    @property
    def is_true(self) -> bool:
        """Return whether the state is that of the tokens."""
        return self.parts[0][1] == state_of(self.tokens, made_by(self.parts[0][1]))


def state_of(tokens: Sequence[int], made: Sequence[Scales]) -> bytes:
    """Return the cells' bytes: of each, the token and the adapters that computed it, again and again."""
    cells = []
    for token, scales in zip(tokens, made, strict=True):
        number = zlib.crc32(repr(scales).encode())
        SCALES[number] = scales
        cells.append((token.to_bytes(4, "little", signed=True) + number.to_bytes(4, "little")) * (BYTES_PER_CELL // 8))
    return b"".join(cells)


def made_by(state: memoryview) -> list[Scales]:
    """Return the adapters that computed each cell."""
    return [SCALES[int.from_bytes(state[at + 4 : at + 8], "little")] for at in range(0, len(state), BYTES_PER_CELL)]


def kernel_features() -> frozenset[str]:
    return frozenset({"SSSE3"})


def cpu_variant() -> None:
    """As the real one, whose back end is linked in."""


class Context(GatedSteps):
    """As the real one, but its steps go through a gate. It makes no checkpoints: an abort costs the whole state."""

    checkpoint_bytes = 0

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int,
        n_seq_max: int,
        n_batch: int,
        n_threads: int,
        kv_unified: bool = True,
        flash_attention: int = -1,
        abortable: bool = True,
        trust_any_memory: bool = False,
        **_: object,  # what makes no difference here
    ) -> None:
        if min(n_ctx, n_seq_max, n_batch, n_threads) < 1:
            raise UsageError("n_ctx, n_seq_max, n_batch and n_threads must be positive")
        if model.memory_kind == "none":
            raise ContextError("this model does not generate token by token")
        if n_batch < n_seq_max:
            raise ContextError("n_batch must be at least n_seq_max, or a step could not advance every sequence")
        self.model, self.memory_kind = model, model.memory_kind
        self.n_seq_max, self.n_batch = n_seq_max, n_batch
        self.kv_unified = kv_unified or not model.can_divide_cells
        if not self.kv_unified and n_ctx < n_seq_max:
            raise ContextError(f"a context of {n_ctx} cells is too small for {n_seq_max} sequences")
        self._cells = Cells(n_ctx, n_seq_max, unified=self.kv_unified)
        self.can_swap = model.memory_kind == "attention" and flash_attention != 0
        self.can_copy = flash_attention != 0 or model.memory_kind == "recurrent"
        self.can_draft = trust_any_memory or model.memory_kind == "attention"
        super().__init__(n_threads=n_threads, abortable=abortable, keeps_truth=self.can_draft)
        self._sequences = [FakeSequence() for _ in range(n_seq_max)]
        self.before_open: Callable[[Sequence[int]], None] = lambda _: None  # this and the faults are for tests
        self.faults: dict[tuple[int, ...], StepStatus | LogitFault] = {}
        self._trap: tuple[int, CancelFlag, int] | None = None
        self.n_ahead = 0  # steps that have begun by themselves
        self._ahead: StepAhead | None = None
        self._ahead_forbidden = False

    @property
    def n_ctx(self) -> int:
        return self._cells.n_ctx

    @property
    def n_cells(self) -> int:
        return self._cells.n_cells

    @property
    def n_cells_used(self) -> int:
        return self.n_cells_of(range(self.n_seq_max))

    def n_cells_of(self, seqs: Iterable[int]) -> int:
        self._check_at_rest()
        return len({cell for seq in seqs for cell in self._at(seq).cells})

    @property
    def open_seqs(self) -> list[int]:
        """For tests: sequences that hold a request."""
        return [seq for seq, sequence in enumerate(self._sequences) if sequence.open]

    def check_cells(self) -> None:
        """For tests: every cell is free or held, never both."""
        self._cells.check([sequence.cells for sequence in self._sequences])

    def lose_cells(self, count: int) -> None:
        """For tests: have that many cells fewer than `n_ctx` says, as a context with sliding windows may."""
        self._cells.lose(count)

    def raise_at(self, poll: int, flag: CancelFlag, *, n_later: int = 0) -> None:
        self._trap = poll, flag, n_later

    @contextmanager
    def _entered(self) -> Iterator[None]:
        if self._ahead is not None:
            raise ContextBusy("a step is running on this context in another thread")
        with super()._entered():
            yield

    def _check_at_rest(self) -> None:
        """The real module refuses this; a test may look, because nothing moves between two of its calls."""
        if self._ahead is not None and self._ahead.thread == threading.get_ident():
            raise ContextBusy("a step is running on this context in another thread")

    def _at(self, seq: int) -> FakeSequence:
        if not 0 <= seq < self.n_seq_max:
            raise UsageError(f"there is no sequence {seq}")
        return self._sequences[seq]

    def open(
        self,
        seq: int,
        tokens: Sequence[int],
        sampler: Sampler,
        flag: CancelFlag,
        *,
        n_held: int = 0,
        n_reusable: int = sys.maxsize,
        n_described: int = 0,
        adapters: Scales = (),
        adapted_from: int = 0,
        media: Sequence[tuple[int, MediaChunk]] = (),
    ) -> int:
        self.before_open(tokens)
        with self._entered():
            sequence = self._at(seq)
            if sequence.open or not tokens:
                raise UsageError(f"sequence {seq} is open already, or gets no tokens")
            if n_held and (not 0 < n_held <= len(sequence.cells) or sequence.media or media or n_described):
                raise UsageError(f"sequence {seq} does not hold {n_held} tokens of text")
            in_media = {start + row: token for start, chunk in media for row, token in enumerate(chunk.tokens)}
            for number, token in enumerate(tokens):
                if in_media.get(number, 0) != token or token >= 0:
                    check_token(token)
            if media and n_described:
                raise UsageError("the tokens of a prompt with pictures cannot be described")
            self.model.check_adapters(adapters)
            tokens = [*sequence.tokens[:n_held], *tokens]
            self._truncate(sequence, self._common_prefix(sequence, tokens, 0 if n_described else n_reusable))
            sequence.adapters, sequence.adapted_from = tuple(adapters), adapted_from
            sequence.n_described, sequence.media = n_described, list(media)
            sequence.tokens, sequence.sampler, sequence.flag = tokens, sampler, flag
            sequence.logits, sequence.open = None, True
            return len(sequence.cells)

    def close(self, seq: int, *, keep: bool) -> None:
        with self._entered():
            sequence = self._at(seq)
            if not keep:
                self._truncate(sequence, 0)
            del sequence.tokens[len(sequence.cells) :]
            sequence.sampler = sequence.flag = sequence.logits = None
            sequence.open = False

    def drop_cells(self, seq: int) -> None:
        with self._entered():
            sequence = self._at(seq)
            self._truncate(sequence, 0)
            if not sequence.open:
                sequence.tokens.clear()

    def take_turns(self, encoder: MediaEncoder) -> None: ...
    def _truncate(self, sequence: FakeSequence, n_tokens: int) -> None:
        n_tokens = whole(sequence.media, n_tokens)
        removed = sequence.cells[n_tokens:]
        del sequence.cells[n_tokens:], sequence.made[n_tokens:]
        shared = {cell for other in self._sequences for cell in other.cells} if removed else set()
        self._cells.give_back(cell for cell in removed if cell not in shared)

    def _reusable(self, sequence: FakeSequence, n_tokens: int) -> int:
        return n_tokens if self._keeps_truth or n_tokens == len(sequence.cells) else 0

    def _common_prefix(self, sequence: FakeSequence, tokens: Sequence[int], most: int) -> int:
        n_equal = n_common(sequence.tokens[: len(sequence.cells)], tokens)
        return self._reusable(sequence, whole(sequence.media, min(most, n_equal)))

    def common_prefixes(self, tokens: Sequence[int], *, most: int = sys.maxsize) -> list[int]:
        self._check_at_rest()
        return [self._common_prefix(sequence, tokens, most) for sequence in self._sequences]

    def share_prefix(self, source: int, target: int, n_tokens: int, *, max_bytes: int) -> bool:
        with self._entered():
            giver, taker = self._at(source), self._at(target)
            if taker.open or source == target or not 1 <= n_tokens <= len(giver.cells):
                raise UsageError("a prefix can be shared only with another, idle sequence")
            can_copy = self.kv_unified or self.can_swap
            if not self._keeps_truth or self._reusable(giver, n_tokens) != n_tokens or not can_copy:
                return False
            self._truncate(taker, 0)
            if not self.kv_unified and self.swap_bytes(source) > max_bytes:
                return False
            taker.tokens, taker.media = giver.tokens[:n_tokens], list(giver.media)
            taker.made = giver.made[:n_tokens]
            taker.cells = giver.cells[:n_tokens] if self.kv_unified else self._cells.take(target, n_tokens)
            return True

    @property
    def is_offloaded(self) -> bool:
        return self.model.is_offloaded

    def common_with(self, prefixes: Sequence[SwappedPrefix], tokens: Sequence[int]) -> list[int]:
        lengths = [whole(prefix.media, n_common(prefix.tokens, tokens)) for prefix in prefixes]
        return [n if n >= prefix.least else 0 for n, prefix in zip(lengths, prefixes, strict=True)]

    def _idle(self, seq: int) -> FakeSequence:
        if self._at(seq).open:
            raise UsageError(f"sequence {seq} is open")
        return self._at(seq)

    def swap_bytes(self, seq: int) -> int:
        self._check_at_rest()
        return BYTES_PER_CELL * len(self._at(seq).cells)

    def copy_out(self, seq: int, *, max_bytes: int) -> SwappedPrefix | None:
        with self._entered():
            sequence = self._idle(seq)
            if not self.can_copy or not sequence.cells or self.swap_bytes(seq) > max_bytes:
                return None
            least = 1 if self._keeps_truth else len(sequence.tokens)
            return SwappedPrefix(sequence.tokens, least, sequence.media, sequence.made)

    def swap_in(self, seq: int, prefix: SwappedPrefix) -> bool:
        with self._entered():
            sequence = self._idle(seq)
            assert prefix.is_true, "a state of other tokens"
            self._truncate(sequence, 0)
            sequence.tokens.clear()
            if prefix.n_tokens > self._cells.n_free(seq):
                return False
            sequence.tokens, sequence.media = list(prefix.tokens), list(prefix.media)
            sequence.made = made_by(prefix.parts[0][1])
            sequence.cells = self._cells.take(seq, prefix.n_tokens)
            return True

    def n_committed(self, seq: int) -> int:
        self._check_at_rest()
        return len(self._at(seq).cells)

    def tokens(self, seq: int) -> list[int]:
        self._check_at_rest()
        return list(self._at(seq).tokens)

    def logits(self, seq: int) -> np.ndarray | None:
        self._check_at_rest()
        return self._at(seq).logits

    def step(
        self,
        items: Iterable[tuple[int, int] | StepItem],
        *,
        fixed_cost: float = 0.0,
        cost_per_token: float = 1.0,
        ends: Iterable[tuple[int, Iterable[int]]] | None = None,
    ) -> StepResult:
        parts = tuple(StepItem(*item) for item in items)
        costs = self.step_cost or (fixed_cost, cost_per_token)
        with self._entered():
            if ends is None:
                return self._compute(parts, costs)
            ahead = StepAhead(parts, costs, [(n_wanted, frozenset(stops)) for n_wanted, stops in ends])
            if len(ahead.ends) != len(parts):
                raise UsageError("a step ahead wants to know of each sequence when it ends")
            return self._advance(ahead, self._compute(parts, costs), goes_on=True)

    def start_ahead(self) -> None: ...
    def collect(self, *, goes_on: bool) -> StepResult:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            raise UsageError("no step is ahead")
        with self._entered():
            return self._advance(ahead, self._compute(ahead.parts, ahead.costs), goes_on=goes_on)

    def forbid_ahead(self) -> None:
        self._ahead_forbidden = True

    def allow_ahead(self) -> None:
        self._ahead_forbidden = False

    def _advance(self, ahead: StepAhead, result: StepResult, *, goes_on: bool) -> StepResult:
        """Have the next step begin, if nothing speaks against it."""
        if result.rows:
            ahead.ends = [
                (n_wanted - len(row.sampled), stops)
                for row, (n_wanted, stops) in zip(result.rows, ahead.ends, strict=True)
            ]
        ended = any(self._has_ended(row, *end) for row, end in zip(result.rows, ahead.ends, strict=False))
        missing = self.n_cells_used + len(ahead.parts) > self.n_cells
        if not goes_on or self._ahead_forbidden or result.status is not StepStatus.OK or ended or missing:
            return result
        self.n_ahead += 1
        self._ahead = StepAhead(tuple(StepItem(part.seq, 1) for part in ahead.parts), ahead.costs, ahead.ends)
        return result._replace(ahead=True)

    def _has_ended(self, row: StepRow, n_wanted: int, stops: frozenset[int]) -> bool:
        sequence = self._at(row.seq)
        assert sequence.flag is not None
        tokens = [sampled.token for sampled in row.sampled]
        over = len(sequence.tokens) > self.n_ctx or any(one in stops or self.model.is_eog(one) for one in tokens)
        return not tokens or n_wanted < 1 or over or sequence.flag.is_set()

    def _compute(self, parts: tuple[StepItem, ...], costs: tuple[float, float]) -> StepResult:
        began_us = int(time.monotonic() * 1e6)
        self._validate(parts)
        for sequence in self._sequences:
            sequence.logits = None
        held = self._held(parts, costs, only_unanimous=not self._keeps_truth or not self.kv_unified)
        if not self._cells.suffice((part.seq, part.n_rows) for part in parts):
            return StepResult(StepStatus.NO_ROOM, [], False, 0, 0, 0)
        self._spring_trap(held)
        status = self._run(held)
        rows = [self._commit(part) for part in parts] if status is StepStatus.OK else []
        spared = status is StepStatus.OK and bool(held.cancelled)
        return StepResult(status, rows, spared, held.polls, 1000, 1, self.n_threads, began_us)

    def _spring_trap(self, held: HeldStep) -> None:
        if self._trap is None:
            return
        poll, flag, n_later = self._trap
        self._trap = (poll, flag, n_later - 1) if n_later else None
        if not n_later and poll <= N_POLLS:
            held.progress = poll / N_POLLS
            flag.set()

    def _lose(self, seq: int) -> None:
        self._truncate(self._at(seq), 0)

    def _validate(self, parts: tuple[StepItem, ...]) -> None:
        for seq, n_tokens, draft in parts:
            sequence = self._at(seq)
            n_pending = len(sequence.tokens) - len(sequence.cells)
            if not sequence.open or not 1 <= n_tokens <= n_pending:
                raise UsageError(f"sequence {seq} has {n_pending} tokens to compute, not {n_tokens}")
            if draft and n_tokens < n_pending:
                raise UsageError(f"the draft of sequence {seq} does not follow its known tokens")
            if draft and not self.can_draft:
                raise UsageError("a rejected draft cannot be undone in this model's memory")
            if draft and len(sequence.tokens) + len(draft) > self.n_ctx:
                raise UsageError(f"the draft of sequence {seq} is longer than the context")
            for token in draft:
                check_token(token)
            check_media(sequence.media, len(sequence.cells), n_tokens, alone=len(parts) == 1 and not draft)
            if len(sequence.cells) < sequence.adapted_from < len(sequence.cells) + n_tokens + len(draft):
                raise UsageError(f"the adapters of sequence {seq} begin within a step")
        if len({part.seq for part in parts}) < len(parts):
            raise UsageError("a sequence stands twice in one step")
        if len({self._at(part.seq).scales for part in parts}) > 1:
            raise UsageError("a step computes with one set of adapters")
        described = sum(max(0, min(self._at(s).n_described - len(self._at(s).cells), n) - 1) for s, n, _ in parts)
        if described + sum(len(part.draft) for part in parts) > MOST_EXTRA_OUTPUTS:
            raise UsageError(f"a step has at most {MOST_EXTRA_OUTPUTS} described and drafted tokens")
        if not 1 <= sum(part.n_rows for part in parts) <= self.n_batch:
            raise UsageError(f"a step computes 1 to {self.n_batch} tokens")

    def _commit(self, part: StepItem) -> StepRow:
        sequence = self._at(part.seq)
        described = self._described(sequence, part.n_tokens)
        self._compute_cells(sequence, part.seq, part.n_tokens)
        if len(sequence.cells) < len(sequence.tokens):
            return StepRow(part.seq, part.n_tokens, described=described)
        sampled, fault = self._choose(sequence, part)
        return StepRow(part.seq, part.n_tokens + max(0, len(sampled) - 1), sampled, fault, described)

    def _compute_cells(self, sequence: FakeSequence, seq: int, n_tokens: int) -> None:
        sequence.made += [sequence.scales] * n_tokens
        sequence.cells += self._cells.take(seq, n_tokens)

    def _choose(self, sequence: FakeSequence, part: StepItem) -> tuple[tuple[SampledToken, ...], LogitFault]:
        """Sample after the known tokens, and after the drafted ones as long as they are what was sampled."""
        sampled: list[SampledToken] = []
        for drafted in (*part.draft, None):
            sequence.logits = self.model.logits(sequence.tokens, sequence.made)
            assert sequence.sampler is not None
            assert sequence.flag is not None
            if sequence.flag.is_set():
                break
            fault = self._fault(part.seq, LogitFault) or LogitFault.NONE
            token, fault = sequence.sampler.sample(sequence.logits, fault)
            if token is None:
                return tuple(sampled), fault
            sampled.append(token)
            sequence.tokens.append(token.token)
            if token.token != drafted or self.model.is_eog(drafted):
                break
            self._compute_cells(sequence, part.seq, 1)
        return tuple(sampled), LogitFault.NONE

    def _described(self, sequence: FakeSequence, n_tokens: int) -> tuple[tuple[int, float, np.ndarray], ...]:
        first, sampler, flag = len(sequence.cells), sequence.sampler, sequence.flag
        assert sampler is not None
        assert flag is not None
        if flag.is_set():
            return ()
        tokens, made = sequence.tokens, [*sequence.made, *[sequence.scales] * n_tokens]
        return tuple(
            sampler.describe(self.model.logits(tokens[: pos + 1], made[: pos + 1]), tokens[pos + 1])
            for pos in range(first, min(first + n_tokens, sequence.n_described - 1))
        )
