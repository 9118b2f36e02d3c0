"""A context of a model's own heads: what it guesses depends on tokens and hidden states, however these got there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from pyllmcancel._native import CancelFlag, Context, Model, Sampler
from pyllmcancel.errors import ContextError, UsageError
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.step import StepItem, StepStatus
from tests.native.conftest import OTHER, PROMPT, SAME_TOKENS_IN_COMPANY, ok
from tests.support.threads import N_THREADS
from tests.support.tiny_heads import STATE, TOKEN, write_tiny_heads, write_tiny_window_heads

N_ANSWERED = 12


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("heads")
    paths = {reads: write_tiny_heads(folder / f"{reads}.gguf", reads=reads) for reads in (TOKEN, STATE)}
    paths["window"] = write_tiny_window_heads(folder / "window.gguf", reads=STATE)
    return {reads: Model.load(path, heads=True) for reads, path in paths.items()}


class Pair:
    """A context that computes a model, and one that computes its heads."""

    def __init__(self, model: Model, **options: Any) -> None:
        sizes: dict[str, Any] = {"n_ctx": 512, "n_seq_max": 3, "n_batch": 64, "n_threads": N_THREADS}
        self.model = Context(model, **sizes | SAME_TOKENS_IN_COMPANY | {"n_states": 128} | options)
        self.heads = Context(model, **sizes | SAME_TOKENS_IN_COMPANY, heads=True)
        self.flags = {seq: CancelFlag() for seq in range(3)}

    @classmethod
    def begun(cls, model: Model, n_answered: int = 1, **options: Any) -> Self:
        """A pair whose model has computed PROMPT, and so many tokens of an answer."""
        pair = cls(model, **options)
        pair.open(0, PROMPT)
        pair.answer(0, n_answered)
        return pair

    def sampler(self) -> Sampler:
        return Sampler(self.model.model, SamplingParams(temperature=0.0))

    def open(self, seq: int, tokens: Sequence[int]) -> None:
        self.model.open(seq, tokens, self.sampler(), self.flags[seq])

    def answer(self, seq: int, count: int) -> list[int]:
        got: list[int] = []
        while len(got) < count:
            n_pending = len(self.model.tokens(seq)) - self.model.n_committed(seq)
            (row,) = ok(self.model.step([StepItem(seq, n_pending)]))
            got += [sampled.token for sampled in row.sampled]
        return got

    def guess(self, seq: int, count: int = 1, *, chunk: int = 64, first: int = 0, keep: int | None = None) -> list[int]:
        """Return the tokens that the heads guess after those of the model's sequence, from `first` on."""
        tokens = self.model.tokens(seq)[first:]
        options: dict[str, Any] = {} if keep is None else {"n_reusable": keep}
        n_done = self.heads.open(seq, tokens, self.sampler(), self.flags[seq], **options)
        while n_done < len(tokens) - 1:
            n_tokens = min(chunk, len(tokens) - 1 - n_done)
            self.heads.follow(seq, self.model, seq, first=first, n_tokens=n_tokens)
            ok(self.heads.step([StepItem(seq, n_tokens)]))
            n_done += n_tokens
        self.heads.follow(seq, self.model, seq, first=first, n_tokens=1)
        guessed = [ok(self.heads.step([StepItem(seq, 1)]))[0].token for _ in range(count)]
        self.heads.close(seq, keep=True)
        return guessed


def row_after(pair: Pair, seq: int, **how: Any) -> list[float]:
    pair.guess(seq, **how)
    logits = pair.heads.logits(seq)
    return [] if logits is None else logits.tolist()


def test_a_model_has_heads_only_if_they_are_loaded(models: dict[str, Model], tmp_path: Path) -> None:
    assert models[TOKEN].n_heads == 1
    path = write_tiny_heads(tmp_path / "heads.gguf")
    without = Model.load(path)
    assert without.n_heads == 0
    assert Model.load(path, without_weights=True, heads=True).n_heads == 1
    assert Model.load(write_tiny_heads(tmp_path / "nameless.gguf", nameless=True), heads=True).n_heads == 0
    for options in ({"heads": True}, {"n_states": 8}):
        with pytest.raises(ContextError, match="has no heads"):
            Context(without, n_ctx=64, n_seq_max=1, n_batch=16, n_threads=1, **options)


@pytest.mark.parametrize("reads", [STATE, "window"])
def test_each_token_goes_with_the_state_that_it_was_chosen_from(models: dict[str, Model], reads: str) -> None:
    pair = Pair(models[reads])
    pair.open(0, PROMPT)
    for _ in range(N_ANSWERED):
        (last,) = pair.answer(0, 1)
        assert pair.guess(0, 3) == [last] * 3  # by the model's state, then by the head's own, which is the same


def test_the_heads_know_what_follows_a_token_alone(tmp_path: Path) -> None:
    pair = Pair.begun(Model.load(write_tiny_heads(tmp_path / "chain.gguf", strength=0.0), heads=True))
    guessed = pair.guess(0, 8)
    assert pair.answer(0, 8) == guessed


@pytest.mark.parametrize("reads", [TOKEN, STATE, "window"])
def test_a_guess_is_the_same_in_parts(models: dict[str, Model], reads: str) -> None:
    rows = [row_after(Pair.begun(models[reads], 5), 0, chunk=chunk) for chunk in (64, 7, 1)]
    assert rows[0] == pytest.approx(rows[1], abs=1e-4)
    assert rows[0] == pytest.approx(rows[2], abs=1e-4)


def test_a_guess_after_a_draft_forgets_the_guessed_tokens(models: dict[str, Model]) -> None:
    pair, apart = Pair.begun(models[TOKEN]), Pair.begun(models[TOKEN])
    n_known = len(pair.model.tokens(0))
    pair.guess(0, 4)
    for one in (pair, apart):
        one.answer(0, 3)
    assert row_after(pair, 0, keep=n_known) == pytest.approx(row_after(apart, 0), abs=1e-4)


def test_states_are_kept_of_committed_tokens_only(models: dict[str, Model]) -> None:
    pair = Pair(models[STATE])
    pair.open(0, PROMPT)
    ok(pair.model.step([StepItem(0, 25)]))
    pair.model.raise_at(3, pair.flags[0])
    assert pair.model.step([StepItem(0, 15)]).status is StepStatus.ABORTED
    assert pair.model.n_committed(0) == 25
    pair.heads.open(0, PROMPT, pair.sampler(), CancelFlag())
    pair.heads.follow(0, pair.model, 0, first=0, n_tokens=26)  # the state of token 24 goes with token 25
    with pytest.raises(UsageError, match="the hidden state of token 25 is not kept"):
        pair.heads.follow(0, pair.model, 0, first=0, n_tokens=27)


def test_a_rejected_draft_leaves_no_state(models: dict[str, Model]) -> None:
    pair = Pair(models[STATE])
    pair.open(0, PROMPT)
    ok(pair.model.step([StepItem(0, len(PROMPT), [251, 252, 253])]))
    (last,) = pair.model.tokens(0)[len(PROMPT) :]
    assert pair.guess(0) == [last]
    assert pair.model.first_state(0) == 0


def test_an_accepted_draft_has_its_states(models: dict[str, Model]) -> None:
    pair, apart = Pair(models[STATE]), Pair.begun(models[STATE], 4)
    expected = apart.model.tokens(0)[len(PROMPT) :]
    pair.open(0, PROMPT)
    (row,) = ok(pair.model.step([StepItem(0, len(PROMPT), expected[:3])]))
    assert [sampled.token for sampled in row.sampled] == expected
    assert row_after(pair, 0) == pytest.approx(row_after(apart, 0), abs=1e-4)


def test_the_oldest_states_go_first(models: dict[str, Model]) -> None:
    pair = Pair(models[STATE], n_states=8)
    pair.open(0, PROMPT)
    (last,) = pair.answer(0, 1)
    assert pair.model.first_state(0) == len(PROMPT) - 8
    assert pair.guess(0, first=len(PROMPT) - 7) == [last]
    with pytest.raises(UsageError, match=f"the hidden state of token {len(PROMPT) - 9} is not kept"):
        pair.guess(0, first=len(PROMPT) - 8)


def test_shared_prefixes_share_their_states_and_dropped_cells_drop_them(models: dict[str, Model]) -> None:
    pair = Pair.begun(models[STATE])
    assert pair.model.share_prefix(0, 1, 30, max_bytes=1 << 20)
    assert (pair.model.first_state(0), pair.model.first_state(1)) == (0, 0)
    pair.open(1, [*PROMPT[:30], *OTHER])
    (last,) = pair.answer(1, 1)
    assert pair.guess(1) == [last]
    pair.model.drop_cells(0)
    assert pair.model.first_state(0) == 0 == pair.model.n_committed(0)


def test_neighbours_have_their_own_states(models: dict[str, Model]) -> None:
    pair = Pair(models[STATE])
    for seq, prompt in enumerate((PROMPT, OTHER)):
        pair.open(seq, prompt)
    ok(pair.model.step([StepItem(0, 30), StepItem(1, 30)]))
    ok(pair.model.step([StepItem(1, 1), StepItem(0, 10)]))
    last = [pair.model.tokens(seq)[-1] for seq in (0, 1)]
    for seq in (0, 1):
        tokens = pair.model.tokens(seq)
        pair.heads.open(seq, tokens, pair.sampler(), pair.flags[seq])
        pair.heads.follow(seq, pair.model, seq, first=0, n_tokens=len(tokens))
    n_tokens = [len(pair.heads.tokens(seq)) - 1 for seq in (0, 1)]
    ok(pair.heads.step([StepItem(0, n_tokens[0] // 2), StepItem(1, n_tokens[1] // 2)]))
    ok(pair.heads.step([StepItem(seq, n - n // 2) for seq, n in enumerate(n_tokens)]))
    rows = ok(pair.heads.step([StepItem(1, 1), StepItem(0, 1)]))
    assert [(row.seq, row.token) for row in rows] == [(1, last[1]), (0, last[0])]


def test_the_last_token_is_computed_apart(models: dict[str, Model]) -> None:
    pair = Pair.begun(models[STATE])
    tokens = pair.model.tokens(0)
    pair.heads.open(0, tokens, pair.sampler(), pair.flags[0])
    with pytest.raises(UsageError, match="lacks hidden states"):
        pair.heads.step([StepItem(0, 1)])
    pair.heads.follow(0, pair.model, 0, first=0, n_tokens=len(tokens))
    with pytest.raises(UsageError, match="the last token of a sequence in a step without others"):
        pair.heads.step([StepItem(0, len(tokens))])
    with pytest.raises(UsageError, match="heads compute no drafts"):
        pair.heads.step([StepItem(0, len(tokens), [1])])
    with pytest.raises(UsageError, match="follows another"):
        pair.model.follow(0, pair.model, 0, first=0, n_tokens=1)


def n_polls(models: dict[str, Model], n_tokens: int) -> int:
    pair = Pair.begun(models[STATE])
    pair.heads.open(0, pair.model.tokens(0), pair.sampler(), pair.flags[0])
    pair.heads.follow(0, pair.model, 0, first=0, n_tokens=n_tokens)
    return pair.heads.step([StepItem(0, n_tokens)]).polls


@pytest.mark.parametrize("in_guess", [False, True])
def test_a_cancel_at_every_node_of_the_heads_leaves_the_truth(models: dict[str, Model], *, in_guess: bool) -> None:
    """The step is aborted at each node in turn; then both contexts go on as if nothing had been."""
    pair = Pair.begun(models[STATE])
    tokens = pair.model.tokens(0)
    n_before = len(tokens) - 1
    expected = row_after(pair, 0)
    n_nodes = n_polls(models, n_before)
    assert n_nodes > 10
    n_aborted = 0
    for node in range(1, n_nodes + 1):
        flag = CancelFlag()
        pair.heads.open(0, tokens, pair.sampler(), flag, n_reusable=0)
        pair.heads.follow(0, pair.model, 0, first=0, n_tokens=len(tokens))
        if in_guess:
            ok(pair.heads.step([StepItem(0, n_before)]))
        pair.heads.raise_at(node, flag)
        result = pair.heads.step([StepItem(0, 1 if in_guess else n_before)])
        n_aborted += result.status is StepStatus.ABORTED
        n_committed = n_before if in_guess else 0
        assert pair.heads.n_committed(0) == n_committed or result.status is StepStatus.OK
        pair.heads.close(0, keep=True)
        assert row_after(pair, 0) == pytest.approx(expected, abs=1e-4)
        assert pair.heads.n_cells_used == len(tokens)
    assert n_aborted > n_nodes / 2
