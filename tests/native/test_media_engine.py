"""An engine on the compiled core with a toy projector: pictures beside texts, cancels, choices, reuse."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.engine import Engine
from pyllmcancel.errors import ModelLoadError, RequestCancelled, UsageError
from pyllmcancel.media.values import Media, MediaKind, MediaPrompt
from pyllmcancel.requests.token_stream import ThreadSink, ThreadStream
from tests.support.threads import N_THREADS
from tests.support.toy_projectors import PAIRS, noise_png, write_pair

# In unified cells the last bits of an answer may depend on its company, by flash attention's sums.
EXACT = {"flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32"}
MEMORIES: dict[str, dict[str, Any]] = {"unified": {"kv_unified": True} | EXACT, "divided": {"kv_unified": False}}


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"), request.param)


@pytest.fixture(params=MEMORIES)
def engine(request: pytest.FixtureRequest, pair: tuple[Path, Path]) -> Iterator[Engine]:
    text, projector = pair
    options = {"parallel": 3, "ctx_size": 3 * 512, "threads": N_THREADS, "ubatch_size": 128}
    with Engine.load(EngineConfig(model=text, mmproj=projector, **options, **MEMORIES[request.param])) as made:
        yield made


def prompt_of(engine: Engine, *seeds: int) -> MediaPrompt:
    library = engine.media
    media = [Media.of(MediaKind.IMAGE, noise_png(90, 60, seed=seed)) for seed in seeds]
    return library.prepare("look: " + library.marker * len(seeds) + " what is it?", media)


def stream(engine: Engine, prompt: Any, **options: Any) -> ThreadStream:
    sink = ThreadSink()
    params = generation_params(**{"temperature": 0.0, "max_tokens": 12} | options)
    return ThreadStream(engine.submit([prompt], params, sink), engine, sink)


def tokens_of(answer: ThreadStream) -> list[int]:
    with answer as deltas:
        return [token for delta in deltas for token in delta.tokens]


def test_answers_to_pictures_are_the_same_alone_and_in_company(engine: Engine) -> None:
    prompts = [prompt_of(engine, 1), prompt_of(engine, 2), prompt_of(engine, 1, 2)]
    alone = [tokens_of(stream(engine, prompt)) for prompt in prompts]
    text = tokens_of(stream(engine, engine.tokens("a text about pictures"), max_tokens=40))
    beside = stream(engine, engine.tokens("a text about pictures"), max_tokens=40, reuse_prefix=False)
    # Other content, so that each is encoded again; then the same again.
    fresh = [stream(engine, prompt_of(engine, seed)) for seed in (11, 12)]
    again = [stream(engine, prompt, reuse_prefix=False) for prompt in prompts]
    assert [tokens_of(one) for one in again] == alone
    assert all(len(tokens_of(one)) == 12 for one in fresh)
    assert tokens_of(beside) == text


def test_cancels_at_any_time_leave_the_next_answer_as_it_was(engine: Engine) -> None:
    prompt = prompt_of(engine, 6, 7)
    expected = tokens_of(stream(engine, prompt))
    for number in range(20):
        started = stream(engine, prompt_of(engine, 100 + number, 6))
        timer = threading.Timer(number * 0.001, engine.cancel, [started.request])
        timer.start()
        with suppress(RequestCancelled), started as deltas:
            for _ in deltas:
                pass
        timer.join()
        assert started.request.ended.done()
    assert tokens_of(stream(engine, prompt, reuse_prefix=False)) == expected
    assert engine.occupancy().slots == 0


def test_a_projector_needs_its_model(pair: tuple[Path, Path], tmp_path: Path) -> None:
    text, projector = pair
    with pytest.raises(ModelLoadError):
        Engine.load(EngineConfig(model=text, mmproj=text, ctx_size=512, parallel=1))
    with pytest.raises(ModelLoadError, match="not a projector for the model"):
        Engine.load(EngineConfig(mmproj=projector, ctx_size=512, parallel=1))
    with pytest.raises((ModelLoadError, UsageError, OSError)):
        Engine.load(EngineConfig(model=text, mmproj=tmp_path / "none.gguf", ctx_size=512, parallel=1))
