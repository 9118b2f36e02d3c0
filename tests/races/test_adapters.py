"""LoRA adapters on the real engine: in company and after cancels, a request has the answer that it has alone."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.adapters import Scales
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.engine import Engine
from pyllmcancel.requests.token_stream import ThreadStream
from tests.support.threads import N_THREADS
from tests.support.toy_adapters import write_adapter

SETS: tuple[Scales, ...] = ((), ((0, 1.0),), ((1, 0.5),), ((0, 0.5), (1, 0.5)), ((2, 1.0),))
INVOCATION = "<|im_start|>"
PROMPT = "A long prompt about the sea, its waves, and the ships on them" + INVOCATION + "one two three"


@pytest.fixture(scope="module", params=["attention", "sliding-window", "recurrent", "hybrid"])
def config(request: pytest.FixtureRequest, model_files: dict[str, Path], tmp_path_factory: Any) -> EngineConfig:
    """Three adapters, the last of which is an activated one. Sums are exact enough to compare."""
    folder, model = tmp_path_factory.mktemp("adapters"), model_files[request.param]
    with Engine.load(EngineConfig(model=model, threads=1)) as engine:
        invocation = tuple(engine.model.tokenize(INVOCATION, parse_special=True))
    invocations = (), (), invocation
    files = [write_adapter(folder / f"{n}.gguf", model, seed=n, invocation=invocations[n]) for n in range(3)]
    exact = {"flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32"}
    return EngineConfig(
        model=model, lora=tuple((file, 0.0) for file in files), threads=N_THREADS, parallel=4, ctx_size=512, **exact
    )


@pytest.fixture
def engine(config: EngineConfig) -> Iterator[Engine]:
    with Engine.load(config) as engine:
        yield engine


def asked(engine: Engine, adapters: Scales | None, prompt: str = PROMPT) -> ThreadStream:
    tokens = engine.model.tokenize(prompt, parse_special=True)
    return engine.generate(tokens, adapters=adapters, temperature=0.0, max_tokens=12, ignore_eos=True)


def tokens_of(stream: ThreadStream) -> list[int]:
    with stream:
        return [token for delta in stream for token in delta.tokens]


@pytest.fixture(scope="module")
def expected(config: EngineConfig) -> list[list[int]]:
    """The answers of each set of adapters in a server of its own, whose scales they are."""
    answers = []
    for scales in SETS:
        own = tuple((path, dict(scales).get(number, 0.0)) for number, (path, _) in enumerate(config.lora))
        with Engine.load(replace(config, lora=own)) as engine:
            answers.append(tokens_of(asked(engine, None)))
    return answers


def test_sets_have_different_answers(expected: list[list[int]]) -> None:
    assert len({tuple(answer) for answer in expected}) == len(SETS)


def test_in_company_each_gets_what_it_gets_alone(engine: Engine, expected: list[list[int]]) -> None:
    streams = [asked(engine, scales) for scales in (*SETS, *SETS)]
    assert [tokens_of(stream) for stream in streams] == [*expected, *expected]


def test_prefixes_of_others_are_not_used(engine: Engine, expected: list[list[int]]) -> None:
    for number in (0, 1, 0, 4, 0, 4, 1, 2, 3, 1, 4):
        assert tokens_of(asked(engine, SETS[number])) == expected[number]


def test_a_cancel_leaves_requests_of_other_adapters_alone(engine: Engine, expected: list[list[int]]) -> None:
    for victim in range(len(SETS)):
        streams = [asked(engine, scales) for scales in SETS]
        next(iter(streams[victim]))
        streams[victim].cancel()
        for number, stream in enumerate(streams):
            if number != victim:
                assert tokens_of(stream) == expected[number]
        streams[victim].close()
