"""The contract of ``_native.pyi``, embedders: kept by the compiled module and by its fake."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest

from pyllmcancel.errors import ContextError, UsageError
from pyllmcancel.pooling import Pooling
from pyllmcancel.step import StepStatus
from tests.embedding.conftest import EmbedWorld, ok
from tests.support import fake_embedder

TEXT = [(7 * n + 8) % 250 for n in range(40)]
OTHER = [(11 * n + 5) % 250 for n in range(30)]


@pytest.mark.parametrize("name", ["n_ctx", "n_seq_max", "n_batch", "n_threads"])
def test_sizes_must_be_positive(world: EmbedWorld, name: str) -> None:
    with pytest.raises(UsageError):
        world.embedder(**{name: 0})


@pytest.mark.parametrize("name", ["real encoder rank", "real decoder rank", "real headless rank", "fake none rank"])
def test_a_model_without_a_head_does_not_rank(make_embed_world: Callable[[str], EmbedWorld], name: str) -> None:
    world = make_embed_world(name)
    if world.native is fake_embedder:
        world.model.n_scores = 0
    assert world.model.n_scores == 0
    with pytest.raises(ContextError, match="no classification head"):
        world.embedder()


def test_a_head_has_a_score_for_each_label(make_embed_world: Callable[[str], EmbedWorld]) -> None:
    one, two = make_embed_world("real ranker rank"), make_embed_world("real decoding-ranker rank")
    assert (one.model.n_scores, one.model.labels, one.embedder().n_embd) == (1, [], 1)
    assert (two.model.n_scores, two.model.labels, two.embedder().n_embd) == (2, ["yes", "no"], 2)
    np.testing.assert_allclose(two.alone(TEXT).sum(), 1.0, atol=1e-6)


def test_a_new_embedder_is_empty_and_says_what_it_takes(world: EmbedWorld) -> None:
    embedder = world.embedder()
    assert (embedder.n_seq_max, embedder.n_batch, embedder.n_cells_used) == (4, 128, 0)
    assert embedder.model is world.model
    assert embedder.pooling is world.pooling
    assert embedder.splits == (embedder.memory_kind != "none" and world.pooling in {Pooling.LAST, Pooling.RANK})
    assert embedder.n_text_max == (embedder.n_ctx if embedder.splits else 128)
    assert (embedder.n_ctx == 0) == (embedder.memory_kind == "none")


@pytest.mark.parametrize("seq", [-1, 4])
def test_there_is_no_other_sequence(world: EmbedWorld, seq: int) -> None:
    embedder = world.embedder()
    for call in (embedder.n_committed, embedder.close):
        with pytest.raises(UsageError):
            call(seq)
    with pytest.raises(UsageError):
        world.open(embedder, seq, TEXT)


def test_a_result_is_read_only_float32_and_the_embedding_of_a_text_has_length_one(world: EmbedWorld) -> None:
    embedder = world.embedder()
    world.open(embedder, 0, TEXT)
    (row,) = ok(embedder.step([(0, 40)]))
    assert (row.seq, row.n_tokens, row.faulty) == (0, 40, False)
    assert row.embedding.shape == ((40, embedder.n_embd) if world.pooling is Pooling.NONE else (embedder.n_embd,))
    assert row.embedding.dtype == np.float32
    assert not row.embedding.flags.writeable
    if world.pooling not in {Pooling.NONE, Pooling.RANK}:
        assert np.linalg.norm(row.embedding.astype(np.float64)) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("name", ["real encoder none", "real decoder none"])
def test_token_embeddings_are_those_that_are_pooled(make_embed_world: Callable[[str], EmbedWorld], name: str) -> None:
    rows = make_embed_world(name).alone(TEXT)
    assert not np.allclose(np.linalg.norm(rows, axis=1), 1.0)
    for pooling, pooled in {Pooling.MEAN: rows.mean(axis=0), Pooling.CLS: rows[0], Pooling.LAST: rows[-1]}.items():
        world = make_embed_world(name.replace("none", pooling.name.lower()))
        world.check_same(pooled / np.linalg.norm(pooled), world.alone(TEXT))


def test_an_embedding_outlives_the_next_step_and_the_embedder(world: EmbedWorld) -> None:
    embedder = world.embedder()
    world.open(embedder, 0, TEXT)
    (row,) = ok(embedder.step([(0, 40)]))
    before = row.embedding.tolist()
    world.open(embedder, 1, OTHER)
    ok(embedder.step([(1, 30)]))
    del embedder
    assert row.embedding.tolist() == before
    assert pickle.loads(pickle.dumps(row.embedding)).tolist() == before


def test_different_texts_have_different_embeddings_in_the_order_of_the_items(world: EmbedWorld) -> None:
    embedder = world.embedder()
    world.open(embedder, 0, TEXT)
    world.open(embedder, 1, OTHER)
    rows = ok(embedder.step([(1, 30), (0, 40)]))
    assert [row.seq for row in rows] == [1, 0]
    world.check_same(rows[0].embedding, world.alone(OTHER))
    world.check_same(rows[1].embedding, world.alone(TEXT))
    one, other = (row.embedding[-1] if world.pooling is Pooling.NONE else row.embedding for row in rows)
    assert np.sum((one - other) ** 2) > 1e-3


def test_a_rest_between_steps_changes_nothing(world: EmbedWorld) -> None:
    embedder = world.embedder(n_threads=2)
    embeddings = []
    for seq in range(2):
        embedder.rest()
        world.open(embedder, seq, TEXT)
        (row,) = ok(embedder.step([(seq, 40)]))
        embeddings.append(row.embedding.tolist())
        embedder.close(seq)
    assert embeddings[0] == embeddings[1]


def test_a_closed_sequence_takes_another_text(world: EmbedWorld) -> None:
    embedder = world.embedder()
    for tokens in (TEXT, OTHER, TEXT):
        world.open(embedder, 0, tokens)
        (row,) = ok(embedder.step([(0, len(tokens))]))
        embedder.close(0)
        assert embedder.n_cells_used == 0
        np.testing.assert_array_equal(row.embedding, world.alone(tokens))
    embedder.close(0)


@pytest.mark.parametrize("abortable", [True, False])
def test_a_cancelled_text_gets_no_embedding_and_a_step_of_cancelled_texts_is_aborted_if_it_may_be(
    world: EmbedWorld, abortable: bool
) -> None:
    embedder = world.embedder(abortable=abortable)
    world.open(embedder, 0, TEXT).set()
    result = embedder.step([(0, 40)])
    assert (result.status is StepStatus.ABORTED) is abortable
    assert [row.embedding for row in result.rows] == ([] if abortable else [None])
    assert not abortable or embedder.n_committed(0) == 0


def test_what_cannot_be_opened_is_refused_and_the_longest_text_is_not(world: EmbedWorld) -> None:
    embedder = world.embedder()
    for tokens in ([], [1, 10**6], [-1], [9] * (embedder.n_text_max + 1)):
        with pytest.raises(UsageError):
            world.open(embedder, 0, tokens)
    world.open(embedder, 0, [9] * embedder.n_text_max)
    with pytest.raises(UsageError):
        world.open(embedder, 0, OTHER)  # it is open


INVALID_STEPS = {
    "nothing": [],
    "no tokens": [(0, 0)],
    "more than are pending": [(0, 41)],
    "twice the same": [(0, 40), (0, 40)],
    "an idle sequence": [(1, 1)],
    "an unknown sequence": [(4, 1)],
    "one good, one bad": [(0, 40), (1, 1)],
    "more than a batch": [(0, 40), (2, 60), (3, 60)],
}


@pytest.mark.parametrize("items", INVALID_STEPS.values(), ids=INVALID_STEPS.keys())
def test_a_step_that_makes_no_sense_changes_nothing(world: EmbedWorld, items: list[tuple[int, int]]) -> None:
    embedder = world.embedder()
    world.open(embedder, 0, TEXT)
    world.open(embedder, 2, [3] * 60)
    world.open(embedder, 3, [4] * 60)
    with pytest.raises(UsageError):
        embedder.step(items)
    assert embedder.n_cells_used == 0
    (row,) = ok(embedder.step([(0, 40)]))
    np.testing.assert_array_equal(row.embedding, world.alone(TEXT))


@pytest.mark.parametrize(
    "name",
    [
        *("real decoder last", "real recurrent last", "real hybrid last", "real decoding-ranker rank"),
        *("fake attention last", "fake attention rank"),
    ],
)
def test_a_text_in_parts_is_the_text(make_embed_world: Callable[[str], EmbedWorld], name: str) -> None:
    world = make_embed_world(name)
    embedder = world.embedder()
    world.open(embedder, 0, TEXT)
    for n_tokens in (25, 14):
        (row,) = ok(embedder.step([(0, n_tokens)]))
        assert (row.embedding, row.faulty) == (None, False)
    assert embedder.n_cells_used == 39
    (row,) = ok(embedder.step([(0, 1)]))
    world.check_same(row.embedding, world.alone(TEXT))


@pytest.mark.parametrize("name", ["real encoder mean", "real decoder mean", "real decoder none", "fake none mean"])
def test_a_text_seen_whole_only_is_not_taken_in_parts(make_embed_world: Callable[[str], EmbedWorld], name: str) -> None:
    world = make_embed_world(name)
    embedder = world.embedder()
    world.open(embedder, 0, TEXT)
    with pytest.raises(UsageError, match="40 tokens to compute, not 25"):
        embedder.step([(0, 25)])


def test_a_model_that_says_nothing_does_not_pool(make_embed_world: Callable[[str], EmbedWorld]) -> None:
    with pytest.raises(ContextError, match="does not pool"):
        make_embed_world("real attention last").embedder(pooling=None)


def test_two_embedders_on_one_model_share_nothing(real_world: EmbedWorld) -> None:
    first, second = real_world.embedder(), real_world.embedder()
    real_world.open(first, 0, TEXT)
    real_world.open(second, 0, OTHER)
    (one,), (two,) = ok(first.step([(0, 40)])), ok(second.step([(0, 30)]))
    np.testing.assert_array_equal(one.embedding, real_world.alone(TEXT))
    np.testing.assert_array_equal(two.embedding, real_world.alone(OTHER))


def test_a_step_gives_way_to_a_flag_of_others_and_the_next_one_does_not(world: EmbedWorld) -> None:
    embedder = world.embedder()
    world.open(embedder, 0, TEXT)
    way = world.native.CancelFlag()
    embedder.give_way(way)
    way.set()
    assert embedder.step([(0, len(TEXT))]).status is StepStatus.ABORTED
    assert embedder.n_committed(0) == 0
    ok(embedder.step([(0, len(TEXT))]))
