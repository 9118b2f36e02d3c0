"""Which process of a model gets a request: by its names, or by the work that is waiting."""

from pyllmcancel.front.places import ID, KEY, SESSION, Places, names_of
from pyllmcancel.front.replica import Claim, Name, Replica, State, Ticket
from pyllmcancel.front.requests import FrontRequest
from pyllmcancel.server.streams.kept import Keeping

SLOTS = 2


class Replicas:
    """Processes of one model that serve, and the requests that were sent to them."""

    def __init__(self, *names: str, most: int = 10) -> None:
        self.workers = {name: Replica(name, "m", slots=SLOTS, state=State.LOADED) for name in names}
        self.places = Places(most)

    def chosen(self, *names: Name, owner: str = "", weight: int = 0, avoids: tuple[str, ...] = ()) -> str:
        claim = Claim("m", owner, names, weight, frozenset(avoids))
        return self.places.choose(list(self.workers.values()), claim).name

    def send(self, *names: Name, owner: str = "", weight: int = 0, to: str | None = None) -> Ticket:
        """Send a request to the chosen process, or to the one that is said."""
        worker = self.workers[to or self.chosen(*names, owner=owner, weight=weight)]
        ticket = Ticket(worker, 0.0, Claim("m", owner, names, weight))
        self.places.note(ticket)
        worker.running.add(ticket)
        return ticket

    def end(self, ticket: Ticket) -> None:
        self.places.drop(ticket)
        ticket.replica.running.discard(ticket)

    def use(self, *names: Name, owner: str = "", to: str) -> None:
        self.end(self.send(*names, owner=owner, to=to))


def test_requests_without_names_are_spread_and_none_waits_while_there_is_a_free_slot() -> None:
    replicas = Replicas("a", "b")
    sent = [replicas.send(weight=weight) for weight in (5, 5, 900, 5)]
    assert [one.replica.name for one in sent] == ["a", "b", "a", "b"]
    replicas.end(sent[0])
    assert replicas.chosen() == "a"


def test_sessions_without_live_requests_are_spread() -> None:
    replicas = Replicas("a", "b")
    replicas.workers["a"].used_at = 1.0
    assert replicas.chosen((SESSION, "s")) == "b"


def test_what_waits_goes_where_the_bodies_are_smaller() -> None:
    replicas = Replicas("a", "b")
    for weight in (900, 5, 5, 5):
        replicas.send(weight=weight)
    assert [replicas.send(weight=100).replica.name for _ in range(3)] == ["b"] * 3


def test_a_live_name_keeps_its_process_even_if_that_is_full() -> None:
    replicas = Replicas("a", "b")
    for names in ([(KEY, "k")], [(SESSION, "s")], [(ID, "i")]):
        sent = [replicas.send(*names, to="b"), replicas.send(to="b")]
        assert replicas.chosen(*names) == "b"
        assert replicas.chosen(*names, owner="another") == "a"
        for one in sent:
            replicas.end(one)


def test_the_first_live_name_counts_most() -> None:
    replicas = Replicas("a", "b")
    replicas.send((SESSION, "s"), to="a")
    key = replicas.send((KEY, "k"), to="b")
    assert replicas.chosen((KEY, "k"), (SESSION, "s")) == "b"
    replicas.end(key)
    assert replicas.chosen((KEY, "k"), (SESSION, "s")) == "a"  # a live name, not one that is remembered


def test_an_idle_name_moves_only_where_it_need_not_wait() -> None:
    replicas = Replicas("a", "b")
    replicas.use((SESSION, "s"), to="b")
    replicas.send(to="b")
    assert replicas.chosen((SESSION, "s")) == "b"  # though the other one has less work
    replicas.send(to="b")
    assert replicas.chosen((SESSION, "s")) == "a"
    for _ in range(SLOTS):
        replicas.send(to="a")
    assert replicas.chosen((SESSION, "s")) == "b"


def test_ids_are_not_remembered_and_of_other_names_the_newest() -> None:
    replicas = Replicas("a", "b", most=2)
    for name in ("one", "two", "three", "two"):
        replicas.use((ID, name), (SESSION, name), to="b")
    assert [replicas.chosen((SESSION, name)) for name in ("one", "two", "three")] == ["a", "b", "b"]
    assert replicas.chosen((ID, "two")) == "a"
    replicas.use((SESSION, "his"), owner="another", to="b")
    assert replicas.chosen((SESSION, "three")) == "b"


def test_names_of_a_process_that_takes_nothing_go_elsewhere() -> None:
    for change in ({"state": State.UNLOADED}, {"drains": True}, {"yields": True}):
        replicas = Replicas("a", "b", "c")
        replicas.send((KEY, "k"), to="b")
        for name, value in change.items():
            setattr(replicas.workers["b"], name, value)
        assert replicas.chosen((KEY, "k")) == "a"
        replicas.send((KEY, "k"), to="c")
        assert replicas.chosen((KEY, "k")) == "c"


def test_a_process_that_did_not_take_a_request_is_avoided_while_another_one_does() -> None:
    replicas = Replicas("a", "b")
    assert replicas.chosen(avoids=("a",)) == "b"
    assert replicas.chosen(avoids=("a", "b")) == "a"
    replicas.workers["b"].state = State.LOADING
    assert replicas.chosen(avoids=("a",)) == "a"


def test_a_stuck_process_gets_requests_only_if_all_are_stuck() -> None:
    replicas = Replicas("a", "b")
    replicas.send((KEY, "k"), to="a")
    replicas.workers["a"].is_stuck = True
    assert [replicas.chosen(), replicas.chosen((KEY, "k"))] == ["b", "b"]
    replicas.workers["b"].is_stuck = True
    assert replicas.chosen((KEY, "k")) == "a"


def test_without_a_process_that_serves_the_next_one_to_do_so_is_waited_for() -> None:
    replicas = Replicas("a", "b", "c")
    for worker, state in zip(replicas.workers.values(), (State.FAILED, State.UNLOADED, State.LOADING), strict=True):
        worker.state = state
    assert replicas.chosen() == "c"
    replicas.workers["c"].state = State.FAILED
    assert replicas.chosen() == "b"


def test_nothing_is_left_of_requests_without_lasting_names() -> None:
    replicas = Replicas("a", "b")
    for number in range(100):
        replicas.use((ID, str(number)), to="a")
    assert not any(replicas.places._seats.values())


def test_a_request_is_placed_by_its_key_then_its_parent_then_its_session() -> None:
    request = FrontRequest(request_id="i", session="child", parent="main", supersede="k")
    request.keeping = Keeping("talk")
    assert names_of(request) == ((ID, "i"), (KEY, "k"), (ID, "talk"), (SESSION, "main"), (SESSION, "child"))


def test_a_line_of_a_batch_is_not_placed_by_its_session() -> None:
    request = FrontRequest(request_id="i", session="batch", supersede="k")
    request.spreads = True
    assert names_of(request) == ((ID, "i"), (KEY, "k"))
