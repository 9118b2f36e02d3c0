"""The feed's parts: the recorder, facts in their order, steps that are alike, and the ring with its numbers."""

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.requests.observer import StepPart, StepRecord
from pyllmcancel.server.live import facts as facts_module
from pyllmcancel.server.live import texts as texts_module
from pyllmcancel.server.live.facts import Fact, FactFinder, Happening, PlainFact, Recorder, Stepped, StepsFact
from pyllmcancel.server.live.feed import Feed
from pyllmcancel.server.live.texts import Texts
from pyllmcancel.server.live.wording import Audience, Frames, steps_event
from pyllmcancel.server.running.metrics import EngineMetrics
from pyllmcancel.shares import Owners, Shares
from tests.support.driver import Driver, Tracked

pytestmark = pytest.mark.anyio


def step(number: int, *sequences: StepPart, status: str = "ok", threads: int = 2) -> Stepped:
    return Stepped(StepRecord(number, float(number), 0.5, sequences, status, threads=threads), n_wasted=1)


def decode(request: str = "a", slot: int = 0, owner: str = "") -> StepPart:
    return StepPart(request, 0, "decode", 1, slot, owner)


def prefill(n_tokens: int) -> StepPart:
    return StepPart("p", 0, "prefill", n_tokens, 3)


def steps_of(*steps: Stepped) -> list[StepsFact]:
    return [fact for fact in FactFinder().find(steps) if isinstance(fact, StepsFact)]


def cancelled_request(driver: Driver) -> Tracked:
    tracked = driver.submit()
    driver.cancel(tracked)
    driver.gate.open()
    assert tracked.ending.cancel_reason is CancelReason.EXPLICIT
    return tracked


def test_steps_in_a_row_that_are_alike_are_one() -> None:
    (fact,) = steps_of(*(step(number, decode("a"), decode("b", 1)) for number in (4, 5, 6)))
    event = steps_event(fact, None)
    assert (event["number"], event["n_steps"], event["at"], event["until"]) == (6, 3, 4.0, 6.5)
    assert (event["busy"], event["wasted"], event["others"]) == (1.5, 3, 0)
    assert [(part["request"], part["n_tokens"]) for part in event["sequences"]] == [("a", 3), ("b", 3)]


def test_chunks_of_one_prompt_are_alike_whatever_their_sizes() -> None:
    (fact,) = steps_of(*(step(number, prefill(n)) for number, n in enumerate((64, 64, 32, 32, 7))))
    assert ([part.n_tokens for part in fact.parts()], fact.n_steps) == ([199], 5)


def test_steps_are_alike_whatever_was_drafted() -> None:
    drafted = [decode()._replace(n_tokens=1 + n, n_drafted=n, n_accepted=n // 2) for n in (4, 4, 0, 2)]
    (fact,) = steps_of(*(step(number, part, decode("b", 1)) for number, part in enumerate(drafted)))
    event = steps_event(fact, None)
    assert [(part["n_tokens"], part["n_drafted"], part["n_accepted"]) for part in event["sequences"]] == [
        (14, 10, 5),
        (4, 0, 0),
    ]


@pytest.mark.parametrize(
    "other",
    [
        step(2, decode(), decode("b", 1)),
        step(2, decode("b")),
        step(2, decode(slot=1)),
        step(2, decode(owner="ann")),
        step(2, decode()._replace(phase="prefill")),
        step(2, decode(), status="aborted"),
        step(2, decode(), threads=1),
    ],
)
def test_steps_that_differ_in_anything_else_are_told_apart(other: Stepped) -> None:
    assert [fact.n_steps for fact in steps_of(step(1, decode()), other, step(3, decode()))] == [1, 1, 1]


def test_of_others_sequences_an_owner_learns_only_how_many_tokens_they_had() -> None:
    (fact,) = steps_of(*(step(n, decode("mine", owner="ann"), decode("secret", 1, "bob")) for n in (1, 2)))
    event = Frames().event(fact, Audience("ann"))
    assert "secret" not in str(event)
    assert "bob" not in str(event)
    assert ([part["request"] for part in event["sequences"]], event["others"]) == (["mine"], 2)
    assert (event["wasted"], event["survivors"], event["spared"]) == (0, 0, False)
    (own,) = steps_of(*(step(n, decode("mine", owner="ann")) for n in (1, 2)))
    assert Frames().event(own, Audience("ann"))["wasted"] == 2


def kinds(facts: list[Fact]) -> list[str]:
    return [
        "step" if isinstance(fact, StepsFact) else fact.event["type"] if isinstance(fact, PlainFact) else fact.type
        for fact in facts
    ]


def test_the_order_is_as_promised_whatever_the_order_of_the_records(driver: Driver) -> None:
    request = (tracked := cancelled_request(driver)).request
    records = [
        Happening("ended", request, 3.0, tracked.ending),
        Happening("cancelled", request, 2.0),
        Happening("added", request, 1.0),
    ]
    assert kinds(list(FactFinder().find(records))) == ["added", "cancelled", "ended"]


def test_what_comes_late_in_the_next_flush_is_not_told_again(driver: Driver) -> None:
    request = (tracked := cancelled_request(driver)).request
    finder = FactFinder()
    first = list(finder.find([Happening("admitted", request, 1.0), Happening("ended", request, 2.0, tracked.ending)]))
    assert kinds(first) == ["added", "admitted", "cancelled", "ended"]
    assert not list(finder.find([Happening("added", request, 0.5), Happening("cancelled", request, 1.5)]))


def test_a_request_is_told_as_it_came_even_if_it_is_over(driver: Driver) -> None:
    request = cancelled_request(driver).request
    (fact,) = FactFinder().find([Happening("added", request, request.arrived_at + 1.0)])
    event = Frames().event(fact, Audience(None))
    assert event["type"] == "added"
    entry = event["request"]
    assert (entry["status"], entry["phase"], entry["slots"], entry["cancel_reason"]) == ("waiting", "waiting", [], None)
    assert [name for name, at in entry["times"].items() if at is not None] == ["arrived"]
    assert entry["seconds"] == 1.0


def test_the_event_loop_is_woken_once_until_it_has_taken_what_is_there_and_that_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(facts_module, "MAX_RECORDS", 2)
    woken: list[None] = []
    recorder = Recorder(lambda: woken.append(None))
    for number in range(4):
        recorder.step_done(step(number).record, 0)
    assert (len(woken), recorder.overrun, len(recorder.take())) == (1, True, 2)
    recorder.step_done(step(4).record, 0)
    assert len(woken) == 2


def feed_of(driver: Driver, most: int = 3, *, several: bool = False) -> Feed:
    feed = Feed(EngineMetrics(), Shares(most, Owners(several=several)))
    feed.watch(driver.engine, None)
    return feed


async def test_without_readers_the_engine_has_no_recorder_and_nothing_is_remembered(driver: Driver) -> None:
    feed = feed_of(driver)
    driver.submit()
    with feed.reader(Audience(None), "", print):
        driver.submit()
        feed.flush()
        assert feed.ring.newest > 0
    last = feed.ring.newest
    driver.submit()
    feed.flush()
    assert feed.ring.newest > last, "it may come back"
    last = feed.ring.newest
    feed._listen_no_more()  # what its timer does
    driver.submit()
    feed.flush()
    assert not feed.ring.remembers(last)
    assert len(feed.ring.after(feed.ring.newest, 10)) == 0


async def test_a_reader_after_lost_records_is_not_dropped(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_module, "MAX_RECORDS", 1)
    feed = feed_of(driver)
    dropped: list[str] = []
    with feed.reader(Audience(None), "", lambda: dropped.append("first")):
        driver.submit()
        driver.submit()
        with feed.reader(Audience(None), "", lambda: dropped.append("second")):
            feed.flush()
            assert dropped[0] == "first"
            assert "second" not in dropped


def test_a_prompts_end_and_its_answers_beginning_are_shown(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module, "MAX_CHARACTERS", 5)
    driver.model.answers[b"well hello"] = b"an answer"
    driver.model.answers[b"short"] = b"fine"
    texts = Texts(driver.model)
    driver.engine.add_observer(texts)
    shown = []
    for prompt, end in (("well hello", "hello"), ("short", "short")):
        tracked = driver.submit(prompt, max_tokens=20)
        summary = tracked.request.summary()
        assert (texts.prompt(summary), texts.output(summary)) == (end, None)
        driver.run_to_the_end()
        shown.append(texts.output(tracked.request.summary(tracked.ending)))
    assert shown == ["an an", "fine"], "without the token that ends it"
