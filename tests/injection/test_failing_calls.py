"""Whichever call of llama.cpp fails, and whenever: one request at most ends with an error, the next is as before."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyllmcancel._native import Model
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.answers import FAULTS
from pyllmcancel.engine.engine import Engine
from pyllmcancel.errors import ContextError, ModelLoadError
from pyllmcancel.step import LogitFault
from tests.injection.shared_steps import SharedSteps, fault

BAD_ALLOC = 1000  # native/platform/faults.cpp: throw std::bad_alloc
DEVICE_LOST = 1001  # … std::runtime_error, as a back end does whose device is gone
MAX_CALLS = 400

# llama_decode: -1 an invalid batch, -2 no memory, -3 a failed computation, and what it may say one day; 2 an abort that
# was not asked for; 1 no room. Whether anything was computed first matters to the last only.
CODES = [(code, after) for code in (-1, -2, -3, -99, 2) for after in (False, True)] + [(1, False)]
KINDS = ("attention", "divided", "sliding-window", "recurrent", "hybrid")

# Failures that cost no more than time: a copy that is not made, a prefix that is computed again.
HARMLESS = ("state_size", "state_get", "state_set", "pages", "remove_cells")


@pytest.fixture
def shared(model_files: dict[str, Path], kind: str) -> Iterator[SharedSteps]:
    path = model_files["attention" if kind == "divided" else kind]
    shared = SharedSteps.load(path, kv_unified=kind != "divided")
    yield shared
    shared.engine.close()


def walk(shared: SharedSteps, call: str, code: int = 0, *, after: bool = False, most_failed: int) -> int:
    """Let the first such call fail, then the second, and so on while there are any; returns how many failed."""
    for nth in range(1, MAX_CALLS):
        with fault(call, nth, code, after=after) as n_calls:
            came = shared.meet()
        shared.check_outcome(came, most_failed=most_failed)
        shared.check_as_before()
        if n_calls[0] < nth:
            return nth - 1
    raise AssertionError(f"{MAX_CALLS} calls did not come to an end")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("code", "after"), CODES)
def test_a_step_that_fails_costs_at_most_one_request(shared: SharedSteps, code: int, after: bool) -> None:
    assert walk(shared, "decode", code, after=after, most_failed=1) > 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", [-1, -2, -3, -99])
def test_while_every_step_fails_every_request_ends_with_an_error(shared: SharedSteps, code: int) -> None:
    with fault("decode", 1, code, lasting=True):
        came = shared.meet()
    assert len(shared.check_outcome(came, most_failed=len(came))) == len(came)
    shared.check_as_before()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", HARMLESS)
def test_a_copy_or_a_rollback_that_fails_costs_no_answer(shared: SharedSteps, call: str) -> None:
    walk(shared, call, most_failed=0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_no_memory_while_a_token_is_chosen_costs_that_request_alone(shared: SharedSteps) -> None:
    assert walk(shared, "sample", BAD_ALLOC, most_failed=1) > 5
    with fault("sample", 3, BAD_ALLOC):
        came = shared.meet()
    (failed,) = shared.check_outcome(came, most_failed=1)
    assert (failed.error, failed.param) == (FAULTS[LogitFault.NO_MEMORY], None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nth", [1, 4])
@pytest.mark.parametrize(("code", "why"), [(BAD_ALLOC, "bad_alloc"), (DEVICE_LOST, "the device is lost")])
def test_an_exception_in_a_step_ends_every_request_in_error(shared: SharedSteps, nth: int, code: int, why: str) -> None:
    with fault("decode", nth, code):
        came = shared.meet(may_close=True)
    failed = shared.check_outcome(came, most_failed=len(came))
    assert failed
    assert all(why in str(ending.error) for ending in failed)
    shared.check_dead()


def test_a_text_that_no_memory_is_left_to_read_is_refused_and_the_next_is_read(model_files: dict[str, Path]) -> None:
    model = Model.load(model_files["attention"])
    expected = model.tokenize("a text")
    with fault("tokenize", 1, BAD_ALLOC), pytest.raises(MemoryError):
        model.tokenize("a text")
    assert model.tokenize("a text") == expected


@pytest.mark.parametrize(
    ("call", "code", "error", "why"),
    [
        ("load_model", 0, ModelLoadError, "could not load"),
        ("load_model", BAD_ALLOC, MemoryError, "bad_alloc"),
        ("init_context", 0, ContextError, "could not make"),
        ("init_context", BAD_ALLOC, ContextError, "bad_alloc"),
        ("start_threads", 0, ContextError, "threads"),
        ("start_threads", BAD_ALLOC, MemoryError, "bad_alloc"),
    ],
)
def test_an_engine_that_cannot_be_made_says_why_and_the_next_one_can(
    model_files: dict[str, Path], call: str, code: int, error: type[Exception], why: str
) -> None:
    config = EngineConfig(model=model_files["attention"], ctx_size=256, threads=1)
    with fault(call, 1, code), pytest.raises(error, match=why):
        Engine.load(config)
    Engine.load(config).close()
