"""Which requests are made and which are cut: by the seed alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from pyllmcancel.bench.plan import Delay, Length, PlannedRequest, PlanOptions, make_plan, make_warmup

OPTIONS = PlanOptions(requests=1000, percent=30.0, delay=Delay(0.5, 0.5), seed=42)


def chosen(plan: tuple[PlannedRequest, ...]) -> set[int]:
    return {request.number for request in plan if request.cut_after is not None}


def test_the_same_seed_makes_the_same_plan_again() -> None:
    assert make_plan(OPTIONS) == make_plan(OPTIONS)


def test_another_seed_picks_others() -> None:
    assert chosen(make_plan(OPTIONS)) != chosen(make_plan(replace(OPTIONS, seed=43)))


@pytest.mark.parametrize(
    "changed",
    [
        {"delay": Delay(0.0, 3.0)},
        {"rate": 5.0},
        {"warmup": 7},
        {"prompt": Length(17, 5)},
        {"output": Length(9, 3)},
        {"requests": 1500},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_the_choice_depends_on_nothing_but_seed_and_percentage(changed: dict[str, object]) -> None:
    other = chosen(make_plan(replace(OPTIONS, **changed)))  # type: ignore[arg-type]
    assert {number for number in other if number < OPTIONS.requests} == chosen(make_plan(OPTIONS))


def test_lengths_and_times_do_not_depend_on_the_percentage() -> None:
    spread = replace(OPTIONS, prompt=Length(200, 50), output=Length(60, 10), rate=3.0)
    plans = [make_plan(replace(spread, percent=percent)) for percent in (0.0, 50.0)]
    shapes = [[(r.prompt_tokens, r.max_tokens, r.arrives_at) for r in plan] for plan in plans]
    assert shapes[0] == shapes[1]


def test_each_request_is_chosen_by_itself_so_the_share_is_only_near_the_percentage() -> None:
    share = len(chosen(make_plan(OPTIONS))) / OPTIONS.requests
    # Three standard deviations of 1000 Bernoulli trials.
    assert share == pytest.approx(0.3, abs=3 * (0.3 * 0.7 / 1000) ** 0.5)
    ten_of_fifty = {len(chosen(make_plan(PlanOptions(requests=50, percent=10.0, seed=seed)))) for seed in range(20)}
    assert len(ten_of_fifty) > 1


def test_a_request_chosen_at_a_low_percentage_is_chosen_at_a_higher_one() -> None:
    ten, thirty, all_of_them = (chosen(make_plan(replace(OPTIONS, percent=p))) for p in (10.0, 30.0, 100.0))
    assert ten < thirty < all_of_them
    assert len(all_of_them) == OPTIONS.requests


def test_no_request_is_chosen_at_zero_percent_nor_in_warm_up() -> None:
    assert not chosen(make_plan(replace(OPTIONS, percent=0.0)))
    warmup = make_warmup(replace(OPTIONS, percent=100.0, warmup=20))
    assert len(warmup) == 20
    assert not chosen(warmup)
    assert all(request.warmup and request.arrives_at is None for request in warmup)


def test_lengths_have_the_mean_and_the_spread_that_were_asked_for() -> None:
    lengths = [request.prompt_tokens for request in make_plan(replace(OPTIONS, prompt=Length(200, 20)))]
    mean = sum(lengths) / len(lengths)
    assert mean == pytest.approx(200, abs=3 * 20 / len(lengths) ** 0.5)
    assert (sum((length - mean) ** 2 for length in lengths) / len(lengths)) ** 0.5 == pytest.approx(20, rel=0.1)


def test_a_length_is_at_least_one_token() -> None:
    assert min(request.max_tokens for request in make_plan(replace(OPTIONS, output=Length(2, 50)))) == 1


def test_arrivals_come_at_the_rate_that_was_asked_for_and_not_evenly() -> None:
    times = [request.arrives_at or 0.0 for request in make_plan(replace(OPTIONS, rate=4.0))]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(OPTIONS.requests / 4.0, rel=0.1)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    # The gaps of a Poisson process spread as widely as they are long.
    mean = sum(gaps) / len(gaps)
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.2)


def test_delays_cover_their_range() -> None:
    plan = make_plan(replace(OPTIONS, percent=100.0, delay=Delay(0.25, 2.0)))
    delays = [request.cut_after for request in plan if request.cut_after is not None]
    assert 0.25 <= min(delays) < 0.3
    assert 1.95 < max(delays) <= 2.0
