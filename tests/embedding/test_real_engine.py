"""Models that pool, on the compiled engine: what they are loaded as, and cancels among many texts."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.config import EngineConfig
from pyllmcancel.embeddings.request import Embedded
from pyllmcancel.embeddings.workload import Embedding
from pyllmcancel.engine.engine import Engine
from pyllmcancel.errors import ContextError, InvalidRequestError, PairLengthError, TextLengthError
from pyllmcancel.events import FinishReason
from pyllmcancel.pooling import Pooling
from pyllmcancel.scheduling.scheduler import Occupancy
from tests.support.driver import RecordingSink, Watcher
from tests.support.step_gate import TEST_LIMIT
from tests.support.threads import N_THREADS
from tests.support.tiny_embedders import N_BERT_CONTEXT

WORDS = ["the cat", "sat on", "the mat", "and was happy", "to see", "its own shadow", "in the sun"]
TEXTS = [" ".join(WORDS[number % 7 :] + WORDS[: number % 5]) for number in range(40)]


def load(path: Path, **config: Any) -> Engine:
    engine = Engine.load(EngineConfig(model=path, threads=N_THREADS, **config), observer=Watcher())
    assert isinstance(engine.workload, Embedding)
    return engine


@pytest.mark.parametrize(("kind", "pooling"), [("encoder", Pooling.MEAN), ("decoder", Pooling.LAST)])
def test_a_pooling_model_is_served_as_it_says(embedder_files: dict[str, Path], kind: str, pooling: Pooling) -> None:
    with load(embedder_files[kind]) as engine:
        assert engine.pooling is pooling
        vectors = engine.embed(TEXTS)
        assert vectors.shape == (40, engine.n_embd)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
        np.testing.assert_allclose(engine.embed(TEXTS[7:8])[0], vectors[7], atol=2e-3)
        np.testing.assert_array_equal(engine.embed([engine.text_tokens(TEXTS[7])]), engine.embed(TEXTS[7:8]))
        with pytest.raises(InvalidRequestError, match="does not generate"):
            engine.generate("hello")
        with pytest.raises(InvalidRequestError, match="does not rank"):
            engine.rank("a", ["b"])


def test_a_model_that_generates_makes_embeddings_when_it_is_told_how(model_files: dict[str, Path]) -> None:
    with load(model_files["attention"], pooling="mean") as engine:
        assert engine.embed(TEXTS).shape == (40, engine.n_embd)
    with Engine.load(EngineConfig(model=model_files["attention"], threads=N_THREADS)) as generator:
        assert not isinstance(generator.workload, Embedding)
        with pytest.raises(InvalidRequestError, match="does not pool"):
            generator.submit_texts([[1]], RecordingSink())


def test_a_model_that_pools_can_be_made_to_generate(embedder_files: dict[str, Path]) -> None:
    with (
        Engine.load(EngineConfig(model=embedder_files["decoder"], threads=N_THREADS, pooling="none")) as engine,
        engine.generate("the cat", max_tokens=3) as stream,
    ):
        assert sum(len(delta.tokens) for delta in stream) == 3


def test_a_model_gives_the_vectors_of_tokens_when_it_is_told_to(embedder_files: dict[str, Path]) -> None:
    with load(embedder_files["encoder"], pooling="none", embeddings=True) as engine:
        vectors = engine.embed_tokens(TEXTS)
        assert [rows.shape for rows in vectors] == [(len(engine.text_tokens(text)), engine.n_embd) for text in TEXTS]
        with pytest.raises(InvalidRequestError, match="embeds tokens"):
            engine.embed(TEXTS)
    with load(embedder_files["encoder"]) as pooling:
        means = np.stack([rows.mean(axis=0) / np.linalg.norm(rows.mean(axis=0)) for rows in vectors])
        np.testing.assert_allclose(pooling.embed(TEXTS), means, atol=2e-3)
        with pytest.raises(InvalidRequestError, match="not tokens"):
            pooling.embed_tokens(TEXTS)


@pytest.mark.parametrize("kind", ["ranker", "decoding-ranker"])
def test_a_model_with_a_head_ranks_and_company_does_not_matter(embedder_files: dict[str, Path], kind: str) -> None:
    with load(embedder_files[kind]) as engine:
        scores = engine.rank("the mat", TEXTS)
        assert scores.shape == (40,)
        alone = [engine.rank("the mat", [text])[0] for text in TEXTS[:4]]
        np.testing.assert_allclose(scores[:4], alone, atol=2e-3)
        assert np.std(scores) > 1e-2
        assert abs(engine.rank("happy", TEXTS[:1])[0] - scores[0]) > 1e-3
        with pytest.raises(InvalidRequestError, match="ranks documents"):
            engine.embed(TEXTS)
        with pytest.raises(PairLengthError, match="document 1 is too large"):
            engine.rank("the mat", ["a", "cat " * engine.n_ctx])


REFERENCE = {
    "ranker": (4.18226576, 6.38365221, 2.41785812, 5.12990141),
    "decoding-ranker": (0.59291172, 0.661650836, 0.897019148, 0.933749735),
}


@pytest.mark.parametrize("kind", REFERENCE)
def test_scores_are_those_of_llama_cpp(embedder_files: dict[str, Path], kind: str) -> None:
    """The reference: a program that makes the pairs as llama-server does, and calls `llama_decode` for each."""
    documents = ["the cat sat on the mat", "Paris is a city in France.", "machines learn", ""]
    with load(embedder_files[kind]) as engine:
        alone = [engine.rank("what is a cat?", [document])[0] for document in documents]
        np.testing.assert_allclose(alone, REFERENCE[kind], atol=1e-3)


def test_a_model_is_not_made_to_do_what_it_cannot(embedder_files: dict[str, Path]) -> None:
    no_head = "no classification head"
    for kind, pooling, words in (
        *(("headless", "auto", no_head), ("decoder", "rank", no_head)),
        ("encoder", "none", "cannot generate"),
    ):
        with pytest.raises(ContextError, match=words):
            Engine.load(EngineConfig(model=embedder_files[kind], threads=N_THREADS, pooling=pooling))


def test_a_text_beyond_an_encoders_positions_is_refused_and_the_longest_is_not(embedder_files: dict[str, Path]) -> None:
    with load(embedder_files["encoder"]) as engine:
        assert engine.n_ctx == N_BERT_CONTEXT
        assert engine.embed([[9] * N_BERT_CONTEXT]).shape == (1, engine.n_embd)
        with pytest.raises(TextLengthError):
            engine.embed([[9] * (N_BERT_CONTEXT + 1)])


def test_a_text_longer_than_a_step_is_the_same_in_parts(embedder_files: dict[str, Path]) -> None:
    text = [(7 * n + 3) % 250 for n in range(300)]
    with load(embedder_files["decoder"], ubatch_size=64) as parts, load(embedder_files["decoder"]) as whole:
        np.testing.assert_allclose(parts.embed([text]), whole.embed([text]), atol=2e-3)
        assert parts.trace.n_steps >= 5


class Holder(RecordingSink):
    """Holds the engine thread at its first embedding until the test has cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.on_event = self._hold

    def _hold(self, event: object) -> None:
        if isinstance(event, Embedded) and not self.begun.is_set():
            self.begun.set()
            assert self.go_on.wait(TEST_LIMIT)


def found_by(sink: RecordingSink) -> list[np.ndarray]:
    """The embeddings, in the order of their texts."""
    found = {delta.index: delta.embedding for delta in sink.deltas if isinstance(delta, Embedded)}
    return [found[index] for index in sorted(found)]


def results(engine: Engine, texts: list[str]) -> list[np.ndarray]:
    sink = RecordingSink()
    engine.submit_texts([engine.text_tokens(text) for text in texts], sink).ended.result(TEST_LIMIT)
    return found_by(sink)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "ranker", "decoding-ranker"])
def test_a_cancel_in_five_hundred_texts_is_early_and_harms_nobody(embedder_files: dict[str, Path], kind: str) -> None:
    with load(embedder_files[kind]) as engine:
        expected = results(engine, TEXTS[:3])
        n_before = engine.trace.n_steps
        holder, sink = Holder(), RecordingSink()
        victim = engine.submit_texts([engine.text_tokens(TEXTS[n % 40]) for n in range(500)], holder)
        assert holder.begun.wait(TEST_LIMIT)
        neighbour = engine.submit_texts([engine.text_tokens(text) for text in TEXTS[:3]], sink)
        engine.cancel(victim, CancelReason.DISCONNECT)
        holder.go_on.set()
        ending = victim.ended.result(TEST_LIMIT)
        assert (ending.finish_reason, ending.cancel_reason) == (FinishReason.CANCELLED, CancelReason.DISCONNECT)
        assert ending.usage.prompt_tokens < victim.n_prompt_tokens / 2
        assert sink.ending().finish_reason is FinishReason.STOP
        np.testing.assert_allclose(found_by(sink), expected, atol=2e-3)
        after = engine.trace.snapshot()[n_before + 1 :]
        assert after
        assert all(entry[0] == neighbour.id for record in after for entry in record.sequences)


def test_a_storm_of_cancels_leaves_nothing_behind_and_harms_no_other_request(embedder_files: dict[str, Path]) -> None:
    """Sixteen threads: half of the requests are cancelled, whenever that may be; the others are complete."""
    with load(embedder_files["encoder"], parallel=4) as engine:
        expected = engine.embed(TEXTS)
        tokens = [engine.text_tokens(text) for text in TEXTS]
        sinks = [RecordingSink() for _ in range(16)]
        requests = [engine.submit_texts(tokens, sink) for sink in sinks]
        cancellers = [threading.Thread(target=engine.cancel, args=(request,)) for request in requests[1::2]]
        for thread in cancellers:
            thread.start()
        for thread in cancellers:
            thread.join()
        endings = [request.ended.result(TEST_LIMIT) for request in requests]
        assert [ending.finish_reason for ending in endings[::2]] == [FinishReason.STOP] * 8
        assert [sink.ending() for sink in sinks] == endings
        for sink in sinks[::2]:
            np.testing.assert_allclose(found_by(sink), expected, atol=2e-3)
        assert engine.registry.wait_until_empty(TEST_LIMIT)
        assert engine.occupancy() == Occupancy()
