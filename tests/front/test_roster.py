"""Which models are loaded, and whose turn is next: the rule, by itself."""

import heapq
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

import pyllmcancel.front.roster as rules
from pyllmcancel.front.replica import FAILED_SECONDS, Claim, Replica, State, Ticket
from pyllmcancel.front.roster import Action, Admit, Measure, Refuse, Roster, Start, Stop

GIB = 1 << 30


class Machine:
    """A roster, a clock, and processes that do as they are told, when they are told."""

    def __init__(
        self, *names: str, most: float = math.inf, room: float = math.inf, measures: bool = True, **spec: Any
    ) -> None:
        self.roster = Roster(most, room)
        self.now = 0.0
        self.measures = measures  # at once; False: the test says when
        for name in names:
            self.roster.add(name, **spec)

    def want(self, name: str, *, idle: bool = False) -> Ticket:
        return self.roster.want(self.replica(name), self.now, Claim("", idle=idle))

    def drop(self, ticket: Ticket, keep: float | None = None) -> None:
        ticket.drop(self.now, keep=keep)

    def after(self, seconds: float = 0.0) -> list[Action]:
        self.now += seconds
        actions = self.roster.decide(self.now)
        measured = [one for one in actions if isinstance(one, Measure) and self.measures]
        for one in measured:
            self.replica(one.name).fits()
        rest: list[Action] = [one for one in actions if one not in measured]
        return rest + self.after() if measured else rest

    def loaded(self, name: str, seconds: float = 1.0) -> list[Action]:
        self.now += seconds
        self.replica(name).loaded(self.now)
        return self.after()

    def ended(self, name: str, why: str = "", *, hopeless: bool = False) -> list[Action]:
        self.roster.ended(self.replica(name), self.now, why, hopeless=hopeless)
        return self.after()

    def serve(self, name: str, seconds: float = 1.0) -> None:
        """Load the model for a request, which ends at once."""
        ticket = self.want(name)
        assert self.after() == [Start(name)]
        assert self.loaded(name, seconds) == [Admit(ticket)]
        self.drop(ticket)
        assert self.after() == []

    def running(self, name: str) -> Ticket:
        """Load the model for a request, which goes on."""
        ticket = self.want(name)
        self.after()
        self.loaded(name)
        return ticket

    def hands_over(self, name: str, other: str, seconds: float = 0.0) -> None:
        """Check that one model is stopped now, and the other one started in its place."""
        assert self.after(seconds) == [Stop(name, kill=False)]
        assert self.ended(name) == [Start(other)]

    def replica(self, name: str) -> Replica:
        return self.roster.replicas[name]

    def state(self, name: str) -> State:
        return self.replica(name).state


def test_a_request_that_comes_while_the_load_is_ended_starts_another() -> None:
    machine = Machine("a")
    machine.drop(machine.want("a"))
    assert machine.after() == []
    ticket = machine.want("a")
    machine.after()
    machine.drop(ticket)
    assert machine.after() == [Stop("a", kill=True)]
    again = machine.want("a")
    assert machine.after() == []
    assert machine.ended("a") == [Start("a")]
    assert machine.loaded("a") == [Admit(again)]


def test_the_least_recently_used_gives_way() -> None:
    machine = Machine("a", "b", "c", most=2)
    machine.serve("a")
    machine.serve("b")
    machine.drop(ticket := machine.want("a"))
    machine.after(1.0)
    ticket = machine.want("a")
    machine.after()
    machine.drop(ticket)  # a was used last
    machine.want("c")
    machine.hands_over("b", "c", 1.0)


def test_a_model_stays_for_as_long_as_its_load_took() -> None:
    machine = Machine("a", "b", most=1)
    machine.serve("a", seconds=10.0)
    machine.want("b")
    assert machine.after(4.0) == []
    assert machine.roster.next_at == 20.0
    used = machine.want("a")  # until then it serves
    assert machine.after() == [Admit(used)]
    machine.drop(used)
    assert machine.after(6.0) == [Stop("a", kill=False)]


def test_a_model_that_computes_is_not_unloaded_and_its_new_requests_queue_up() -> None:
    machine = Machine("a", "b", most=1)
    running = machine.running("a")
    wants_b = machine.want("b")
    assert machine.after(5.0) == []
    later = machine.want("a")
    assert machine.after() == []
    machine.drop(running)
    machine.hands_over("a", "b")
    assert machine.loaded("b") == [Admit(wants_b)]
    machine.drop(wants_b)
    assert machine.after(1.0) == [Stop("b", kill=False)]  # a waits, by the arrival of `later`
    assert machine.ended("b") == [Start("a")]
    assert machine.loaded("a") == [Admit(later)]


def test_requests_that_queued_up_go_on_when_nobody_waits_for_the_room() -> None:
    machine = Machine("a", "b", most=1)
    machine.running("a")
    wants_b = machine.want("b")
    later = machine.want("a")
    assert machine.after(5.0) == []
    machine.drop(wants_b)
    assert machine.after() == [Admit(later)]
    assert machine.state("a") is State.LOADED


def test_turns_are_by_arrival() -> None:
    machine = Machine("a", "b", "c", most=1)
    machine.serve("a")
    machine.want("c")
    machine.after(0.5)
    machine.want("b")
    machine.hands_over("a", "c", 5.0)


def test_models_give_way_together_or_not_at_all() -> None:
    machine = Machine("a", "b", "c", room=4 * GIB)
    machine.roster.add("a", GIB)
    machine.roster.add("b", 2 * GIB)
    machine.roster.add("c", 4 * GIB)
    machine.serve("a")
    running = machine.running("b")
    machine.want("c")
    assert machine.after(9.0) == []
    machine.drop(running)
    assert machine.after() == [Stop("a", kill=False), Stop("b", kill=False)]
    assert machine.ended("a") == []
    assert machine.ended("b") == [Start("c")]


def test_models_that_fit_together_stay_together() -> None:
    machine = Machine("a", "b", room=2 * GIB, need=GIB)
    machine.serve("a")
    machine.want("b")
    assert machine.after() == [Start("b")]
    assert machine.state("a") is State.LOADED


def test_what_never_fits_is_refused_at_once_and_says_why() -> None:
    machine = Machine("a", "b", room=GIB)
    machine.roster.add("a", 2 * GIB)
    ticket = machine.want("a")
    (refusal,) = machine.after()
    assert refusal.ticket is ticket
    assert "takes 2,147,483,648 bytes, and all models together may take 1,073,741,824" in refusal.why
    machine.want("b")
    assert machine.after() == [Start("b")]  # what is refused holds nobody up


def test_pinned_models_never_give_way() -> None:
    machine = Machine("a", "b", most=1)
    machine.roster.add("a", pinned=True, idle_after=1.0)
    machine.serve("a")
    ticket = machine.want("b")
    (refusal,) = machine.after(99.0)
    assert refusal == Refuse(ticket, "there is no room for b beside the models that are pinned")
    assert machine.state("a") is State.LOADED


def test_a_request_may_say_how_long_its_model_stays() -> None:
    machine = Machine("a", idle_after=5.0)
    machine.drop(machine.running("a"), keep=math.inf)
    assert machine.after(1e6) == []
    machine.want("a")
    (admitted,) = machine.after()
    machine.drop(admitted.ticket, keep=0.0)
    assert machine.after() == [Stop("a", kill=False)]


def test_the_next_request_without_a_wish_restores_the_configured_time() -> None:
    machine = Machine("a", idle_after=5.0)
    first, second = machine.want("a"), machine.running("a")
    machine.drop(first, keep=math.inf)
    machine.drop(second)
    assert machine.after(5.0) == [Stop("a", kill=False)]


def test_a_model_that_failed_is_tried_again_later_or_when_somebody_asks() -> None:
    machine = Machine("a")
    machine.want("a")
    machine.after()
    machine.ended("a", "not a GGUF file", hopeless=True)
    assert machine.state("a") is State.FAILED
    machine.now += FAILED_SECONDS
    machine.want("a")
    assert machine.after() == [Start("a")]
    machine.ended("a", "not a GGUF file", hopeless=True)
    machine.replica("a").ask(machine.now)
    assert machine.after() == [Start("a")]


def test_a_model_that_waits_for_its_next_try_holds_nobody_up() -> None:
    machine = Machine("a", "b", most=1)
    machine.want("a")
    machine.after()
    machine.want("b")
    assert machine.ended("a", "signal 9") == [Start("b")]


def test_a_process_that_dies_again_and_again_is_given_up() -> None:
    machine = Machine("a")
    machine.serve("a")
    for pause in (rules.FIRST_PAUSE, 2 * rules.FIRST_PAUSE):
        machine.ended("a", "signal 6")
        assert machine.after(pause) == [Start("a")]
        machine.loaded("a")
    machine.ended("a", "signal 6")
    assert machine.state("a") is State.FAILED


def test_a_long_life_forgives_earlier_deaths() -> None:
    machine = Machine("a")
    machine.serve("a")
    for _ in range(5):
        machine.now += rules.LONG_LIFE + 1.0
        machine.ended("a", "signal 9")
        assert machine.after(rules.FIRST_PAUSE) == [Start("a")]
        machine.loaded("a")


# -- a simulation -----------------------------------------------------------------------------------------------------


class Simulation:
    """Clients and processes on a clock of their own. Invariants are checked after each event."""

    def __init__(self, seed: int, needs: dict[str, int], most: float, room: float) -> None:
        self.random = random.Random(seed)
        self.roster = Roster(most, room)
        for name, need in needs.items():
            self.roster.add(name, need)
        self.now = 0.0
        self.events: list[tuple[float, int, str, object]] = []
        self.n_events = 0
        self.waits: list[float] = []
        self.n_starts = 0
        self.left: set[Ticket] = set()
        self.open: set[Ticket] = set()
        self.lives: dict[str, int] = {}

    def at(self, seconds: float, kind: str, what: object) -> None:
        self.n_events += 1
        heapq.heappush(self.events, (self.now + seconds, self.n_events, kind, what))

    def run(self, until: float) -> None:
        while self.events or self.roster.next_at < math.inf:
            at = self.events[0][0] if self.events else math.inf
            if min(at, self.roster.next_at) > until:
                return
            if self.roster.next_at < at:
                self.now = max(self.now, self.roster.next_at)
            else:
                self.now, _, kind, what = heapq.heappop(self.events)
                self.happen(kind, what)
            self.act(self.roster.decide(self.now))
            self.check()

    def happen(self, kind: str, what: object) -> None:
        match kind, what:
            case "arrive", str(name):
                ticket = self.roster.want(self.roster.replicas[name], self.now, Claim(""))
                self.open.add(ticket)
                if self.random.random() < 0.2:
                    self.at(self.random.expovariate(1.0), "leave", ticket)
            case "leave" | "done", Ticket() as ticket:
                self.open.discard(ticket)
                self.left.add(ticket)
                ticket.drop(self.now)
            case "loaded", (str(name), int(life)):
                if self.lives.get(name) == life:
                    self.roster.replicas[name].loaded(self.now)
            case "measured", str(name):
                self.roster.replicas[name].fits()
            case "ended", str(name):
                self.roster.ended(self.roster.replicas[name], self.now)

    def act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Start(name):
                    self.n_starts += 1
                    self.lives[name] = self.n_starts
                    self.at(2.0, "loaded", (name, self.n_starts))
                case Stop(name, kill):
                    model = self.roster.replicas[name]
                    assert kill or not model.running, "a model that computes was unloaded"
                    self.lives.pop(name)
                    self.at(0.1, "ended", name)
                case Measure(name):
                    self.at(0.5, "measured", name)
                case Admit(ticket):
                    assert ticket not in self.left, "a request that had left was admitted"
                    self.waits.append(self.now - ticket.arrived)
                    self.at(self.random.expovariate(2.0), "done", ticket)
                case Refuse():
                    raise AssertionError("nothing is refused here")

    def check(self) -> None:
        held = [model for model in self.roster.replicas.values() if model.takes_room]
        assert len(held) <= self.roster.most
        assert sum(model.need for model in held) <= self.roster.room
        for model in held:
            if model.state is State.LOADING:
                assert model.wanted, "a model is loaded for nobody"


@pytest.mark.parametrize("seed", range(5))
def test_clients_that_alternate_are_all_served_and_do_not_reload_at_every_request(seed: int) -> None:
    simulation = Simulation(seed, {"a": 0, "b": 0}, most=1, room=math.inf)
    for number in range(400):
        simulation.at(number * 0.5, "arrive", "ab"[number % 2])
    simulation.run(until=10_000.0)
    assert simulation.open == set(), "a request waits for ever"
    assert max(simulation.waits) < 20.0
    # A model stays for as long as its load takes, 2 s, in which four of its requests come.
    assert simulation.n_starts < 75


@pytest.mark.parametrize("seed", range(5))
def test_a_model_that_is_used_without_a_pause_starves_no_other(seed: int) -> None:
    simulation = Simulation(seed, {"busy": 2, "rare": 2, "large": 4}, most=math.inf, room=4)
    for number in range(2_000):  # always several at once
        simulation.at(number * 0.1, "arrive", "busy")
    for number in range(10):
        simulation.at(3.0 + number * 19.0, "arrive", "rare")
        simulation.at(11.0 + number * 19.0, "arrive", "large")
    simulation.run(until=10_000.0)
    assert simulation.open == set(), "a request waits for ever"
    assert max(simulation.waits) < 30.0


# -- measurements before a load ---------------------------------------------------------------------------------------


def full_machine() -> Machine:
    """A machine with room for one model, which has one that is idle."""
    machine = Machine("a", "b", most=1)
    machine.drop(machine.want("a"))
    machine.replica("a").ask(machine.now)
    assert machine.after() == [Start("a")]
    machine.loaded("a", 0.0)
    machine.measures = False
    return machine


def test_a_model_is_measured_before_another_has_to_go() -> None:
    machine = full_machine()
    machine.want("b")
    assert machine.after() == [Measure("b")]
    machine.want("b")
    assert machine.after() == []  # it is being measured
    machine.replica("b").fits()
    machine.hands_over("a", "b")


def test_an_answer_that_nobody_waits_for_any_more_fails_nothing() -> None:
    machine = full_machine()
    ticket = machine.want("b")
    assert machine.after() == [Measure("b")]
    machine.drop(ticket)
    machine.roster.unfit(machine.replica("b"), "it is no model", machine.now)
    assert machine.after() == []
    assert machine.state("b") is State.UNLOADED
    machine.want("b")
    assert machine.after() == [Measure("b")]


def test_a_model_that_has_room_is_not_measured_unless_the_room_is_limited() -> None:
    machine = Machine("a", "b", most=1, measures=False)
    machine.want("a")
    machine.want("b")
    assert machine.after() == [Start("a"), Measure("b")]
    limited = Machine("a", room=1.0, measures=False)
    limited.want("a")
    assert limited.after() == [Measure("a")]


# -- replicas ---------------------------------------------------------------------------------------------------------


def with_replicas(*names: str, **options: float) -> Machine:
    """Models with two processes each, the second one named after the first."""
    machine = Machine(**options)  # type: ignore[arg-type]
    for name in names:
        machine.roster.add(name, 1, of=name)
        machine.roster.add(f"{name}:2", 1, of=name)
    return machine


def loaded_with_replicas(*names: str, **options: float) -> Machine:
    machine = with_replicas(*names, **options)
    for name in names:
        machine.replica(name).ask(machine.now)
        assert machine.after() == [Start(name)]
        assert machine.loaded(name) == [Start(f"{name}:2")]
        assert machine.loaded(f"{name}:2") == []
    return machine


def test_a_load_that_nobody_waits_for_brings_no_replicas() -> None:
    machine = with_replicas("a")
    ticket = machine.want("a")
    machine.after()
    machine.drop(ticket)
    assert machine.after() == [Stop("a", kill=True)]
    assert machine.ended("a") == []


def test_a_further_replica_makes_no_room_for_itself() -> None:
    machine = with_replicas("a", "b", room=3)
    for name in ("a", "b"):
        machine.replica(name).ask(machine.now)
    assert machine.after() == [Start("a"), Start("b")]
    assert machine.loaded("a") == [Start("a:2")]
    assert machine.loaded("b") == []
    assert machine.loaded("a:2") == []
    assert machine.after(60.0) == []  # nobody uses a, which b:2 could replace
    assert machine.state("b:2") is State.UNLOADED


def test_replicas_that_load_give_way_with_their_model() -> None:
    machine = with_replicas("a", "b", room=2)
    machine.replica("b").ask(machine.now)
    machine.after()
    assert machine.loaded("b") == [Start("b:2")]
    machine.want("a")
    assert machine.after(10.0) == [Stop("b", kill=False)]
    assert machine.ended("b") == [Stop("b:2", kill=True), Start("a")]


def test_replicas_count_as_one_model() -> None:
    machine = loaded_with_replicas("a", most=1)
    assert [one.state for one in machine.roster.workers("a")] == [State.LOADED] * 2
    machine.roster.add("b", 1)
    machine.want("b")
    assert machine.after(10.0) == [Stop("a", kill=False), Stop("a:2", kill=False)]
    assert machine.ended("a") == []
    assert machine.ended("a:2") == [Start("b")]


def test_replicas_sleep_together() -> None:
    machine = loaded_with_replicas("a")
    for name in ("a", "a:2"):
        machine.replica(name).idle_after = machine.replica(name).usual_idle = 5.0
    used = machine.want("a:2")
    assert machine.after() == [Admit(used)]
    assert machine.after(60.0) == []
    machine.drop(used)
    assert machine.after(4.0) == []
    assert machine.roster.next_at == machine.now + 1.0
    assert machine.after(1.0) == [Stop("a", kill=False), Stop("a:2", kill=False)]


def test_a_replica_that_dies_comes_back_and_is_tried_three_times_beside_the_other() -> None:
    machine = loaded_with_replicas("a")
    machine.ended("a:2", "signal 9")
    for pause in (0.5, 1.0):
        assert machine.after(pause) == [Start("a:2")]
        assert machine.ended("a:2", "signal 9") == []
    for _ in range(2):  # one more start each time
        assert machine.state("a:2") is State.FAILED
        assert machine.after(FAILED_SECONDS - 1.0) == []
        assert machine.roster.next_at == machine.now + 1.0
        assert machine.after(1.0) == [Start("a:2")]
        assert machine.ended("a:2", "signal 9") == []
    machine.replica("a:2").ask(machine.now)
    assert machine.after() == [Start("a:2")]


def test_a_rolling_restart_ends_with_a_process_that_cannot_be_started() -> None:
    machine = loaded_with_replicas("a")
    machine.roster.renew("a")
    machine.hands_over("a", "a")
    assert machine.ended("a", "it does not fit", hopeless=True) == []
    assert (machine.state("a"), machine.replica("a:2").is_open) == (State.FAILED, True)


def test_the_only_process_of_a_model_is_started_anew_and_its_requests_wait() -> None:
    machine = Machine("a")
    machine.serve("a")
    stream = machine.want("a")
    machine.after()
    machine.roster.renew("a")
    later = machine.want("a")
    assert machine.after() == []
    machine.drop(stream)
    machine.hands_over("a", "a")
    assert machine.loaded("a") == [Admit(later)]


def test_a_replica_that_is_not_listed_any_more_is_not_loaded_again() -> None:
    machine = with_replicas("a")
    machine.replica("a").ask(machine.now)
    machine.after()
    assert machine.loaded("a") == [Start("a:2")]
    machine.replica("a:2").is_listed = False
    assert machine.after() == [Stop("a:2", kill=True)]
    assert machine.ended("a:2") == []


def test_unloading_refuses_those_who_wait_and_ends_the_process() -> None:
    machine = Machine("a")
    machine.replica("a").ask(0.0)
    ticket = machine.want("a")
    machine.after()
    machine.roster.unload(machine.replica("a"), "it was unloaded")
    assert machine.after() == [Refuse(ticket, "it was unloaded"), Stop("a", kill=True)]
    machine.ended("a")
    assert machine.after() == []
    assert machine.state("a") is State.UNLOADED


def test_an_idle_request_waits_until_others_have_its_model_loaded() -> None:
    machine = Machine("a")
    idle = machine.want("a", idle=True)
    assert machine.after(60.0) == []
    other = machine.want("a")
    assert machine.after() == [Start("a")]
    assert machine.loaded("a") == [Admit(idle), Admit(other)]


def test_an_idle_request_does_not_keep_its_model_loaded() -> None:
    machine = Machine("a", "b", most=1)
    machine.serve("a")
    idle = machine.want("a", idle=True)
    assert machine.after(100.0) == [Admit(idle)]
    machine.want("b")
    machine.hands_over("a", "b")


def test_a_model_with_idle_requests_goes_to_sleep() -> None:
    machine = Machine("a", idle_after=10.0)
    machine.serve("a")
    idle = machine.want("a", idle=True)
    assert machine.after(5.0) == [Admit(idle)]
    assert machine.after(5.0) == [Stop("a", kill=False)]
