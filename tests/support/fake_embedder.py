"""A verified fake of ``pyllmcancel._native.Embedder``: the same contract, no llama.cpp, and steps that a test can hold.

Verified: ``tests/embedding/test_contract.py`` runs one set of tests against it and the compiled one. As in
`fake_native`, an embedding is a function of the text, so any two computations of the same tokens agree.
"""

import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pyllmcancel.adapters import Scales
from pyllmcancel.errors import ContextError, UsageError
from pyllmcancel.pooling import EmbedResult, EmbedRow, Pooling
from pyllmcancel.step import StepItem, StepStatus
from tests.support.fake_model import CancelFlag, Model, check_token
from tests.support.step_gate import GatedSteps

__all__ = ["CancelFlag", "Embedder", "Model", "embedding_of"]

N_EMBD = 8


def embedding_of(tokens: Sequence[int], adapters: Scales = ()) -> np.ndarray:
    """Return the embedding of a text, the same in any company; shape (N_EMBD,), of length 1."""
    seed = array("i", tokens).tobytes() + (repr(adapters).encode() if adapters else b"")
    values = np.random.default_rng(zlib.crc32(seed)).standard_normal(N_EMBD)
    embedding = (values / np.linalg.norm(values)).astype(np.float32)
    embedding.flags.writeable = False
    return embedding


def scores_of(tokens: Sequence[int], n: int = 1) -> np.ndarray:
    """Return the scores of a text, the same in any company; shape (n,)."""
    scores = np.random.default_rng(zlib.crc32(array("i", tokens).tobytes())).standard_normal(n).astype(np.float32) * 4
    scores.flags.writeable = False
    return scores


def token_embeddings_of(tokens: Sequence[int]) -> np.ndarray:
    """Return the vectors of a text's tokens, each of which knows the whole text; shape (len(tokens), N_EMBD)."""
    rows = np.stack([embedding_of([*tokens, place]) for place in range(len(tokens))]) * np.float32(2)
    rows.flags.writeable = False
    return rows


@dataclass(slots=True)
class FakeText:
    tokens: list[int] = field(default_factory=list)
    n_committed: int = 0
    open: bool = False
    flag: CancelFlag | None = None
    adapters: Scales = ()


class Embedder(GatedSteps):
    """As the real one, but its steps go through a gate. A model whose memory is ``none`` is an encoder."""

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int,
        n_seq_max: int,
        n_batch: int,
        n_threads: int,
        pooling: Pooling | None = None,
        abortable: bool = True,
        **_: object,  # what makes no difference here
    ) -> None:
        if min(n_ctx, n_seq_max, n_batch, n_threads) < 1:
            raise UsageError("n_ctx, n_seq_max, n_batch and n_threads must be positive")
        self.pooling = Pooling.MEAN if pooling is None else pooling
        if self.pooling is Pooling.RANK and not model.n_scores:
            raise ContextError("this model has no classification head, so it cannot rank texts")
        self.n_embd = model.n_scores if self.pooling is Pooling.RANK else N_EMBD
        self.model, self.memory_kind = model, model.memory_kind
        self.n_ctx = 0 if self.memory_kind == "none" else n_ctx
        self.n_seq_max, self.n_batch = n_seq_max, n_batch
        self.splits = self.memory_kind != "none" and self.pooling in {Pooling.LAST, Pooling.RANK}
        fits = self.n_ctx if self.splits else min(self.n_ctx or n_batch, n_batch)
        self.n_text_max = min(fits, model.n_ctx_train)
        keeps_truth = self.memory_kind in {"attention", "none"}
        super().__init__(n_threads=n_threads, abortable=abortable, keeps_truth=keeps_truth)
        self._texts = [FakeText() for _ in range(n_seq_max)]
        self.faults: dict[tuple[int, ...], StepStatus] = {}  # these are for tests
        self.faulty: set[tuple[int, ...]] = set()  # whole texts

    @property
    def n_cells_used(self) -> int:
        return sum(text.n_committed for text in self._texts) if self.n_ctx else 0

    @property
    def open_seqs(self) -> list[int]:
        """For tests: sequences that hold a text."""
        return [seq for seq, text in enumerate(self._texts) if text.open]

    def _at(self, seq: int) -> FakeText:
        if not 0 <= seq < self.n_seq_max:
            raise UsageError(f"there is no sequence {seq}")
        return self._texts[seq]

    def open(self, seq: int, tokens: Sequence[int], flag: CancelFlag, *, adapters: Scales = ()) -> None:
        with self._entered():
            if self._at(seq).open or not 1 <= len(tokens) <= self.n_text_max:
                raise UsageError(f"sequence {seq} is open already, or its text has {len(tokens)} tokens")
            for token in tokens:
                check_token(token)
            self.model.check_adapters(adapters)
            self._texts[seq] = FakeText(list(tokens), 0, True, flag, tuple(adapters))

    def close(self, seq: int) -> None:
        with self._entered():
            self._at(seq)
            self._texts[seq] = FakeText()

    def n_committed(self, seq: int) -> int:
        return self._at(seq).n_committed

    def step(
        self, items: Iterable[tuple[int, int]], *, fixed_cost: float = 0.0, cost_per_token: float = 1.0
    ) -> EmbedResult:
        parts = tuple(StepItem(*item) for item in items)
        with self._entered():
            self._validate(parts)
            costs = self.step_cost or (fixed_cost, cost_per_token)
            held = self._held(parts, costs, only_unanimous=not self._keeps_truth)
            if self.n_ctx and self.n_cells_used + sum(part.n_tokens for part in parts) > self.n_ctx:
                return EmbedResult(StepStatus.NO_ROOM, [], False, 0, 0)
            status = self._run(held)
            rows = [self._commit(part) for part in parts] if status is StepStatus.OK else []
            return EmbedResult(status, rows, status is StepStatus.OK and bool(held.cancelled), held.polls, 1000)

    def _validate(self, parts: tuple[StepItem, ...]) -> None:
        for seq, n_tokens, _ in parts:
            text = self._at(seq)
            n_pending = len(text.tokens) - text.n_committed
            if not text.open or not 1 <= n_tokens <= n_pending or (not self.splits and n_tokens != n_pending):
                raise UsageError(f"sequence {seq} has {n_pending} tokens to compute, not {n_tokens}")
        if len({part.seq for part in parts}) < len(parts):
            raise UsageError("a sequence stands twice in one step")
        if len({self._at(part.seq).adapters for part in parts}) > 1:
            raise UsageError("a step computes with one set of adapters")
        if not 1 <= sum(part.n_tokens for part in parts) <= self.n_batch:
            raise UsageError(f"a step computes 1 to {self.n_batch} tokens")

    def _lose(self, seq: int) -> None:
        self._at(seq).n_committed = 0

    def _commit(self, part: StepItem) -> EmbedRow:
        text = self._at(part.seq)
        text.n_committed += part.n_tokens
        assert text.flag is not None
        if text.n_committed < len(text.tokens) or text.flag.is_set():
            return EmbedRow(part.seq, part.n_tokens)
        if tuple(text.tokens) in self.faulty:
            return EmbedRow(part.seq, part.n_tokens, faulty=True)
        return EmbedRow(part.seq, part.n_tokens, self._result(text.tokens, text.adapters))

    def _result(self, tokens: Sequence[int], adapters: Scales) -> np.ndarray:
        match self.pooling:
            case Pooling.RANK:
                return scores_of(tokens, self.n_embd)
            case Pooling.NONE:
                return token_embeddings_of(tokens)
            case _:
                return embedding_of(tokens, adapters)
