"""Which choices compute, and what goes into a step."""

import pytest

from pyllmcancel.scheduling.scheduler import HEADROOM
from tests.support.scheduling import Bench

PROMPT = list(range(100, 150))


def test_no_request_overtakes_a_prompt_that_does_not_fit_yet() -> None:
    bench = Bench(parallel=3, n_ctx=100)
    bench.add(PROMPT)
    large, small = bench.add(PROMPT, "large"), bench.add([1], "small")
    assert large.seq is None
    assert small.seq is None
    assert not bench.has_room_for(1)


def test_a_newcomer_leaves_headroom_for_those_who_run_and_a_single_request_always_fits() -> None:
    bench = Bench(n_ctx=100)
    assert bench.has_room_for(99)
    bench.add(PROMPT)
    assert bench.has_room_for(100 - len(PROMPT) - HEADROOM - 1)
    assert not bench.has_room_for(100 - len(PROMPT) - HEADROOM)


def test_a_prompt_is_computed_in_chunks() -> None:
    bench = Bench()
    bench.add(PROMPT)
    assert [bench.step()[0].n_tokens for _ in range(5)] == [16, 16, 16, 2, 1]


def test_short_prompts_that_compute_alone_share_the_time_between_two_decodes() -> None:
    bench, decoding, prompts = beside_short_prompts()
    first, second, third, fourth = prompts
    # Three of them are more than the 16 tokens that may come between two decodes.
    order = [{first}, {second}, {decoding, first, second}, {third}, {fourth}, {decoding, *prompts}]
    assert [{seq for seq, _ in bench.step()} for _ in order] == order


def test_short_prompts_come_between_decodes_one_by_one_where_steps_are_slow() -> None:
    bench, decoding, (first, second, *_) = beside_short_prompts(itl_target=0.5)
    for _ in range(50):
        bench.scheduler.cost.observe(6, 0.4)
    order = [{first}, {decoding, first}, {second}, {decoding, first, second}]
    assert [{item.seq for item in bench.plan_and_compute()} for _ in order] == order


def test_decodes_that_were_aborted_are_next_all_the_same() -> None:
    bench, decoding, (first, second, *_) = beside_short_prompts()
    bench.step()
    bench.step()
    aborted = bench.scheduler.plan()
    assert {item.seq for item in aborted} == {decoding, first, second}
    bench.scheduler.resync(aborted)
    assert bench.step() == [item[:2] for item in aborted]


def beside_short_prompts(**config: float) -> tuple[Bench, int | None, list[int | None]]:
    """One sequence that decodes, and four prompts of six tokens that compute alone."""
    bench = Bench(kind="hybrid", parallel=8, **config)
    decoding = bench.add([1])
    bench.step()
    return bench, decoding.seq, [bench.add([number] * 6, str(number)).seq for number in range(2, 6)]


@pytest.mark.parametrize("gpu", [False, True])
def test_a_long_prompt_and_running_decodes_take_turns_or_share_each_step_on_a_gpu(gpu: bool) -> None:
    bench = Bench(gpu=gpu)
    decoding = bench.add([1, 2])
    bench.step()
    long = bench.add(PROMPT, "long")
    steps = [[(decoding.seq, 1), (long.seq, 15)]] if gpu else [[(decoding.seq, 1)], [(long.seq, 16)]]
    assert [bench.step() for _ in steps * 2] == steps * 2


def test_the_oldest_prompt_is_computed_first_and_the_next_fills_the_step() -> None:
    bench = Bench()
    first, second = bench.add(PROMPT[:10], "first"), bench.add(PROMPT[::-1], "second")
    assert bench.step() == [(first.seq, 10), (second.seq, 6)]


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_prompts_compute_alone_where_an_abort_harms_the_whole_batch(kind: str, gpu: bool) -> None:
    bench = Bench(kind=kind, parallel=3, gpu=gpu)
    decoding = bench.add([1, 2], "decoding")
    bench.step()
    first, second = bench.add(PROMPT, "first"), bench.add(PROMPT, "second")
    steps = [bench.step() for _ in range(20)]
    assert all(len(items) == 1 or all(item.n_tokens == 1 for item in items) for items in steps)
    assert sum(items[0].seq == decoding.seq for items in steps[:6]) == 3, "prompts and decodes take turns"
    assert min(first.n_committed, second.n_committed) >= len(PROMPT)


def test_with_divided_cells_a_prompt_computes_alone_and_decodes_in_the_order_of_their_sequences() -> None:
    bench = Bench(parallel=2, kv_unified=False)
    first, second = bench.add([1, 2, 3], "first"), bench.add([4, 5, 6], "second")
    assert bench.step() == [(first.seq, 3)]
    bench.scheduler.release(first)
    assert bench.step() == [(second.seq, 3)]
    assert (bench.add([7, 8], "again").seq, second.seq) == (0, 1)
    bench.step()
    bench.step()
    assert bench.step() == [(0, 1), (1, 1)]


def test_of_divided_cells_everybody_has_enough() -> None:
    bench = Bench(parallel=3, n_ctx=100, kv_unified=False)
    assert all(bench.add([n] * 60, str(n)).seq is not None for n in range(3))


def test_siblings_start_when_their_leader_has_computed_the_prompt_and_share_its_cells() -> None:
    bench = Bench(parallel=3)
    leader = bench.add(PROMPT, n=3)
    siblings = leader.siblings
    while not leader.generated:
        bench.step()
        assert all(sibling.seq is None for sibling in siblings)
    assert bench.scheduler.start_pending() == siblings
    assert [sibling.n_committed for sibling in siblings] == [len(PROMPT) - 1] * 2
    assert [item.n_tokens for item in bench.step()] == [1, 1, 1]


def test_siblings_go_before_requests_that_came_later() -> None:
    bench = Bench(parallel=2)
    leader = bench.add(PROMPT, n=2)
    bench.decode(leader)
    later = bench.add([7, 8], "later")
    assert leader.siblings[0].seq is not None
    assert later.seq is None


def test_choices_of_one_prompt_go_on_until_their_cells_run_out_and_count_what_they_share_once() -> None:
    bench = Bench(parallel=3, n_ctx=200)
    leader = bench.add(list(range(100)), n=3, max_tokens=33)
    choices = leader.request.choices
    while not all(choice.generated for choice in choices):
        bench.step()
        bench.scheduler.start_pending()
    while leader.n_known < 100 + 32:
        bench.step()
    assert bench.scheduler.n_preempted == 0
    # Each has computed all but its newest token; they share the prompt but for its last token, which each computes.
    n_shared, n_own = 99, sum(choice.n_committed - 99 for choice in choices)
    assert bench.scheduler.occupancy().cells == n_shared + n_own


def test_a_newcomer_needs_no_room_for_cells_that_a_running_one_has() -> None:
    bench = Bench(parallel=3, n_ctx=120)
    bench.add(PROMPT)
    while bench.step()[0].n_tokens > 1:
        pass
    like_it = bench.add([*PROMPT, 9, 9, 9], "like it")
    other = bench.add([7] * (len(PROMPT) + 3), "another")
    assert like_it.seq is not None
    assert other.seq is None


def test_idle_prefixes_are_evicted_until_there_is_room_though_they_share_their_cells() -> None:
    bench = Bench(parallel=3, n_ctx=150)
    leader = bench.add(list(range(90)), n=3, max_tokens=4)
    while not all(choice.generated for choice in leader.request.choices):
        bench.step()
        bench.scheduler.start_pending()
    for choice in leader.request.choices:
        bench.scheduler.release(choice)
    bench.decode(bench.add([201] * 120, "newcomer"))
    assert bench.scheduler.n_preempted == 0
    assert bench.context.n_cells_used >= 120


def test_when_cells_run_out_the_newest_gives_way_and_the_oldest_goes_on() -> None:
    bench = Bench(n_ctx=64)
    old, new = bench.add([1] * 20, "old", max_tokens=40), bench.add([2] * 20, "new", max_tokens=40)
    while old.n_known < 45:
        bench.step()
    assert old.seq is not None
    assert new.seq is None
    assert bench.scheduler.n_preempted == 1


def test_suspects_compute_alone_until_each_has_shown_whether_it_is_at_fault_or_has_ended() -> None:
    bench = Bench(parallel=3)
    first, second, third = (bench.add([number, 2], str(number)) for number in range(3))
    bench.scheduler.suspect([first.seq, second.seq, third.seq])
    assert bench.step() == [(first.seq, 2)]
    bench.scheduler.release(second)
    assert bench.step() == [(third.seq, 2)]
    assert len(bench.step()) == 2


def test_without_room_the_newest_of_several_gives_way_until_another_ends_or_pauses() -> None:
    for makes_room in ("release", "pause"):
        bench = Bench()
        old, new = bench.add([1], "old"), bench.add([2], "new")
        assert bench.scheduler.recover_from_no_room()
        assert (old.seq is not None, new.seq) == (True, None)
        later = bench.add([3], "later")
        assert (later.seq, bench.scheduler.start_pending()) == (None, [])
        assert not bench.scheduler.recover_from_no_room()
        bench.scheduler.pause([old]) if makes_room == "pause" else bench.scheduler.release(old)
        assert bench.scheduler.start_pending() == [new, later], "it arrived before the other"


def test_without_room_idle_prefixes_go_before_running_requests() -> None:
    bench = Bench()
    gone = bench.add(PROMPT, "gone")
    bench.step()
    bench.scheduler.release(gone)
    running = bench.add([1], "running")
    assert bench.scheduler.recover_from_no_room()
    assert bench.scheduler.occupancy().idle_cells == 0
    assert running.seq is not None
