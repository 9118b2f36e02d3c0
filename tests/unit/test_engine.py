"""The requests that the engine accepts and refuses, and its messages."""

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from pyllmcancel.engine.choices import MAX_CHOICES
from pyllmcancel.errors import EngineClosedError, InvalidRequestError
from tests.support.driver import Driver, complete

REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "an empty prompt": ([], {}, "prompt"),
    "a prompt as long as the context": ([1] * 512, {}, "prompt"),
    "an unknown token": ([1, 10_000], {}, "prompt"),
    "no choices": ([1], {"n": 0}, "n"),
    "too many choices": ([1], {"n": MAX_CHOICES + 1}, "n"),
    "no tokens": ([1], {"max_tokens": -1}, "max_tokens"),
    "a negative timeout": ([1], {"timeout": -1.0}, "timeout"),
    "a timeout that is no number": ([1], {"timeout": float("nan")}, "timeout"),
    "a grammar without a root": ([1], {"grammar": 'foo ::= "a"'}, "grammar"),
}


@pytest.mark.parametrize(("prompt", "options", "param"), REFUSED.values(), ids=REFUSED.keys())
def test_what_can_never_be_served_is_refused_and_changes_nothing(
    driver: Driver, prompt: list[int], options: dict[str, Any], param: str
) -> None:
    key_holder = driver.submit(supersede="s")
    counts = driver.engine.counts()
    with pytest.raises(InvalidRequestError) as caught:
        driver.submit(prompt, supersede="s", **options)
    assert caught.value.param == param
    assert driver.engine.counts() == counts
    assert key_holder.request.live
    driver.run_to_the_end()
    assert complete(key_holder)


def test_a_closed_engine_refuses(driver: Driver) -> None:
    driver.engine.close()
    with pytest.raises(EngineClosedError):
        driver.submit()


def test_a_full_queue_is_free_again_at_once_when_a_waiter_is_cancelled(make_driver: Callable[..., Driver]) -> None:
    driver = make_driver(parallel=1, max_queue=1)
    driver.submit()
    waiter = driver.submit()
    driver.engine.cancel(waiter.request)
    driver.answered()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [re.sub(r"[\d.]+ (ms|s)\b", r"… \1", record.getMessage()) for record in caplog.records]


def test_the_log_tells_the_story_of_a_superseded_request(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pyllmcancel.engine"):
        driver.submit([1] * 40, session="editor", supersede="editor", request_id="old")
        driver.step()
        driver.answered([2] * 5, session="editor", supersede="editor", request_id="new", max_tokens=2)
    said = "\n".join(lines(caplog))
    assert "request old added, owner -, session editor, 40 prompt tokens, waiting" in said
    assert "request new added, owner -, session editor, 5 prompt tokens, waiting" in said
    (cancelled,) = [line for line in lines(caplog) if "cancelled" in line]
    told = "request old cancelled (superseded by new) in prefill after 16 of 40 tokens, stopped in … ms"
    assert cancelled.startswith(told)
    (finished,) = [line for line in lines(caplog) if "finished" in line]
    assert "request new finished (length): 5 prompt tokens, 0 cached, 2 generated" in finished
    assert finished.endswith("waiting 0, running 0")


def test_each_request_has_one_line_for_its_ending(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pyllmcancel.engine"):
        for number in range(4):
            tracked = driver.submit(n=3, request_id=f"r{number}")
            driver.step()
            if number % 2:
                driver.cancel(tracked)
        driver.run_to_the_end()
    endings = [line.split()[1] for line in lines(caplog) if " cancelled (" in line or " finished (" in line]
    assert sorted(endings) == ["r0", "r1", "r2", "r3"]
