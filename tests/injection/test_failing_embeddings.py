"""A step of texts that fails costs one request at most, and the next texts get the vectors that they got before."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import PoolingType

from pyllmcancel.config import EngineConfig
from pyllmcancel.embeddings.request import Embedded
from pyllmcancel.engine.engine import Engine
from pyllmcancel.events import FinishReason
from pyllmcancel.requests.request import Request
from tests.injection.shared_steps import fault
from tests.support.driver import RecordingSink
from tests.support.tiny_embedders import write_tiny_decoder, write_tiny_encoder

# By the call that computes.
KINDS = {"encode": write_tiny_encoder, "decode": write_tiny_decoder}
TEXTS = ([list(range(30, 50)), list(range(60, 68))], [list(range(40, 80))], [[20, 21, 22]])
CODES = [(code, after) for code in (-1, -2, -3, -99, 2) for after in (False, True)]
MAX_CALLS = 100


@pytest.fixture
def engine(tmp_path: Path, call: str) -> Iterator[Engine]:
    pooling = PoolingType.MEAN if call == "encode" else PoolingType.LAST
    path = KINDS[call](tmp_path / "model.gguf", pooling=pooling)
    # Cells of 16 bits would make more of the company's difference than a step that went wrong.
    cells: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}
    with Engine.load(EngineConfig(model=path, threads=1, ctx_size=256, batch_size=64, **cells)) as engine:
        yield engine


def meet(engine: Engine) -> list[tuple[Request, RecordingSink]]:
    came = []
    for texts in TEXTS:
        sink = RecordingSink()
        came.append((engine.submit_texts(texts, sink), sink))
    for _, sink in came:
        sink.ending()
    return came


def vectors(sink: RecordingSink) -> list[np.ndarray]:
    found = [delta for delta in sink.deltas if isinstance(delta, Embedded)]
    return [delta.embedding for delta in sorted(found, key=lambda delta: delta.index)]


def check(came: list[tuple[Request, RecordingSink]], expected: list[list[np.ndarray]]) -> None:
    failed = []
    for (_, sink), right in zip(came, expected, strict=True):
        ending = sink.ending()
        if ending.finish_reason is FinishReason.ERROR:
            failed.append(ending.error)
        else:
            assert ending.finish_reason is FinishReason.STOP
            # Other company may mean another kernel, and with it other last bits.
            np.testing.assert_allclose(vectors(sink), right, atol=1e-4)
    assert len(failed) <= 1, failed


@pytest.mark.parametrize("call", KINDS)
@pytest.mark.parametrize(("code", "after"), CODES)
def test_a_failed_step_of_texts_costs_at_most_one_request(engine: Engine, call: str, code: int, after: bool) -> None:
    expected = [vectors(sink) for _, sink in meet(engine)]
    alone = engine.embed(TEXTS[0])
    for nth in range(1, MAX_CALLS):
        with fault(call, nth, code, after=after) as n_calls:
            came = meet(engine)
        check(came, expected)
        assert engine.failure is None
        np.testing.assert_array_equal(engine.embed(TEXTS[0]), alone)
        assert engine.occupancy()[:2] == (0, 0)
        if n_calls[0] < nth:
            break
    assert nth > 1
