"""LoRA adapters of requests: each request gets the tokens that it gets alone, in any company."""

from typing import Any

import pytest

from pyllmcancel.adapters import Adapter, Scales
from pyllmcancel.errors import InvalidRequestError
from tests.support.driver import AHEAD, MEMORIES, Driver, MakeDriver, Tracked

INVOCATION = tuple(b"<go>")
ADAPTERS = (Adapter(), Adapter(), Adapter(invocation_tokens=INVOCATION))
FIRST, SECOND, BOTH, ACTIVATED = ((0, 1.0),), ((1, 0.5),), ((0, 0.5), (1, 2.0)), ((2, 1.0),)
SETS: tuple[Scales, ...] = ((), FIRST, SECOND, BOTH)
PROMPT = "a prompt of some thirty tokens, long enough to share"


@pytest.fixture(params=[*MEMORIES, *AHEAD])
def driver(request: pytest.FixtureRequest, make_driver: MakeDriver) -> Driver:
    return make_driver(**(MEMORIES | AHEAD)[request.param], adapters=ADAPTERS, parallel=4)


def asked(driver: Driver, prompt: str = PROMPT, scales: Scales = (), **options: Any) -> Tracked:
    return driver.submit(prompt, adapters=scales, **options)


def done(driver: Driver, tracked: Tracked) -> Tracked:
    driver.run_to_the_end()
    return tracked


def test_a_scale_that_is_nothing_in_single_precision_is_none(driver: Driver) -> None:
    assert done(driver, asked(driver, scales=((0, 1e-50), (1, -1e-300)))).request.adapters == ()
    done(driver, asked(driver, scales=((0, 1e-30),)))


@pytest.mark.parametrize("first", SETS, ids=str)
@pytest.mark.parametrize("second", SETS, ids=str)
def test_a_prefix_is_used_by_requests_of_its_adapters_only(driver: Driver, first: Scales, second: Scales) -> None:
    done(driver, asked(driver, scales=first))
    again = done(driver, asked(driver, PROMPT + " with a longer end", second))
    can_share = first == second and driver.context.memory_kind == "attention"
    assert (again.ending.usage.cached_tokens > 0) == can_share


def test_a_running_prefix_is_not_shared_with_other_adapters(driver: Driver) -> None:
    asked(driver, scales=FIRST, max_tokens=30)
    driver.step(6)
    other = asked(driver, PROMPT + " and more", SECOND)
    driver.run_to_the_end()
    assert other.ending.usage.cached_tokens == 0


@pytest.mark.parametrize("kind", ["attention", "divided"])
def test_a_prefix_that_was_swapped_out_keeps_its_adapters(make_driver: MakeDriver, kind: str) -> None:
    driver = make_driver(**MEMORIES[kind], adapters=ADAPTERS, parallel=1, spare_seqs=0, n_ctx=128)
    for scales in (FIRST, (), FIRST, SECOND, (), BOTH, FIRST):
        done(driver, asked(driver, scales=scales))
    assert driver.tracked[2].ending.usage.cached_tokens > 0
    assert driver.tracked[4].ending.usage.cached_tokens > 0
    assert driver.tracked[3].ending.usage.cached_tokens == 0


def test_an_activated_adapter_shares_what_comes_before_its_invocation(driver: Driver) -> None:
    text = f"{PROMPT}<go>"
    done(driver, asked(driver, PROMPT))
    adapted = done(driver, asked(driver, text, ACTIVATED))
    begin = adapted.request.choices[0].adapted.begin
    assert begin == len(PROMPT) - 1  # llama-server counts the token before, too
    if driver.context.memory_kind == "attention":
        assert adapted.ending.usage.cached_tokens == begin
    again = done(driver, asked(driver, text + " and again", ACTIVATED))
    if driver.context.memory_kind == "attention":
        assert again.ending.usage.cached_tokens >= len(text)
    assert done(driver, asked(driver, text + " and more")).ending.usage.cached_tokens <= begin
    assert done(driver, asked(driver, text + " and more", FIRST)).ending.usage.cached_tokens == 0


def test_an_activated_adapter_without_its_invocation_does_nothing(driver: Driver) -> None:
    tracked = done(driver, asked(driver, scales=ACTIVATED))
    assert tracked.expected == driver.model.greedy(tracked.prompt, 4)


def test_the_last_invocation_counts_and_one_at_the_beginning_adapts_all(driver: Driver) -> None:
    twice = asked(driver, "<go> one <go> two", ACTIVATED)
    assert twice.request.choices[0].adapted.begin == len("<go> one ") - 1
    assert asked(driver, "<go> one", ACTIVATED).request.choices[0].adapted.begin == 0
    assert asked(driver, "one <go> two", (*FIRST, *ACTIVATED)).request.choices[0].adapted.begin == 0
    driver.run_to_the_end()


def test_a_known_answer_is_one_of_the_same_adapters(make_driver: MakeDriver) -> None:
    driver = make_driver(adapters=ADAPTERS, draft_sources=("past",))
    for scales in (FIRST, SECOND, (), FIRST):
        done(driver, asked(driver, scales=scales, max_tokens=12))
    certain = [one.request.choices[0].n_certain for one in driver.tracked]
    assert certain[:3] == [0, 0, 0]
    assert certain[3] > 0


def test_no_set_waits_for_ever_beside_a_stream_of_others(make_driver: MakeDriver) -> None:
    driver = make_driver(adapters=ADAPTERS, parallel=4)
    patient = asked(driver, scales=SECOND, owner="a", max_tokens=4)
    others = [asked(driver, scales=FIRST, owner="b", max_tokens=400) for _ in range(3)]
    driver.step(60)  # 13 steps of its own, and others' turns between them
    assert patient.ended
    assert not any(other.ended for other in others)


def test_two_activated_adapters_are_refused(make_driver: MakeDriver) -> None:
    driver = make_driver(adapters=(*ADAPTERS, Adapter(invocation_tokens=(1,))))
    with pytest.raises(InvalidRequestError, match="aLoRA"):
        driver.submit(PROMPT, adapters=((2, 1.0), (3, 1.0)))
