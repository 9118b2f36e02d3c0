"""One key's requests on several replicas: whatever comes in which order, exactly the newest of them lives."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from pyllmcancel.events import Ending, FinishReason, RequestStatus
from pyllmcancel.requests.effects import Accepted
from pyllmcancel.requests.registry import Registry
from pyllmcancel.requests.request import Rank, Request
from tests.support.bare_requests import bare_request

KEY = "k"


def end(registry: Registry, accepted: Accepted) -> None:
    """End the requests that waited, as the engine does."""
    for request in accepted.withdrawn:
        request.status = RequestStatus.FINISHED
        registry.seal(request)
        registry.forget(request, Ending(FinishReason.CANCELLED, request.usage(), RequestStatus.WAITING))


@dataclass
class Replicas:
    """Registries, and the messages between them: from whom, to whom, and of which request."""

    n: int
    registries: list[Registry] = field(init=False)
    messages: list[tuple[int, int, Rank]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.registries = [Registry(max_queue=64) for _ in range(self.n)]

    def accept(self, place: int, request: Request) -> None:
        """As the engine and its announcer do."""
        self.requests.append(request)
        end(self.registries[place], self.registries[place].accept(request))
        if request.superseded_by is None:
            self.messages += [(place, other, request.rank) for other in range(self.n) if other != place]

    def deliver(self, which: int) -> None:
        """One message. Its answer, if there is one, is on its way then."""
        sender, receiver, rank = self.messages.pop(which)
        newer, accepted = self.registries[receiver].heed("", KEY, rank)
        end(self.registries[receiver], accepted)
        if newer is not None:
            self.messages.append((receiver, sender, newer))

    @property
    def live(self) -> list[Request]:
        return [request for request in self.requests if not request.cancellation.requested]


# Each request: its replica, when it is accepted beside the others (it may take long to prepare), and how many messages
# arrive before it is, each chosen by a number.
ARRIVALS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 5), st.lists(st.integers(0, 1000), max_size=4)), min_size=1, max_size=8
)
REST = st.lists(st.integers(0, 1000), max_size=40)


def played(n: int, arrivals: list[tuple[int, int, list[int]]], rest: list[int], skew: tuple[int, ...]) -> Replicas:
    """Requests that arrive one microsecond after the other, by clocks that differ by `skew`, till all is delivered."""
    replicas = Replicas(n)
    made = [
        (
            i + delay,
            place % n,
            deliveries,
            bare_request(f"r{i}", supersede=KEY, arrived_at=i, arrived_us=i + skew[place % n]),
        )
        for i, (place, delay, deliveries) in enumerate(arrivals)
    ]
    for _, place, deliveries, request in sorted(made, key=lambda one: one[0]):
        for which in deliveries:
            if replicas.messages:
                replicas.deliver(which % len(replicas.messages))
        replicas.accept(place, request)
    for which in rest:
        if replicas.messages:
            replicas.deliver(which % len(replicas.messages))
    while replicas.messages:
        replicas.deliver(0)
    return replicas


@given(n=st.integers(2, 3), arrivals=ARRIVALS, rest=REST)
# Accepted in the wrong order on two replicas, and the news of each arrives first at the other.
@example(n=2, arrivals=[(0, 5, []), (1, 0, [])], rest=[0, 0])
# The newer one has been told of before the older one, which takes long to prepare, is accepted.
@example(n=2, arrivals=[(0, 5, [0]), (1, 0, []), (1, 0, [])], rest=[])
def test_when_all_messages_have_arrived_exactly_the_newest_lives(
    n: int, arrivals: list[tuple[int, int, list[int]]], rest: list[int]
) -> None:
    replicas = played(n, arrivals, rest, skew=(0, 0, 0))
    assert [request.id for request in replicas.live] == [f"r{len(arrivals) - 1}"]


@given(n=st.integers(2, 3), arrivals=ARRIVALS, rest=REST, skew=st.tuples(*[st.integers(-3, 3)] * 3))
def test_with_clocks_that_differ_exactly_one_lives(
    n: int, arrivals: list[tuple[int, int, list[int]]], rest: list[int], skew: tuple[int, ...]
) -> None:
    assert len(played(n, arrivals, rest, skew).live) == 1


@given(arrivals=ARRIVALS, rest=REST, jumps=st.lists(st.integers(-5, 5), min_size=8, max_size=8))
def test_with_clocks_that_are_set_in_between_exactly_one_lives(
    arrivals: list[tuple[int, int, list[int]]], rest: list[int], jumps: list[int]
) -> None:
    replicas = Replicas(2)
    for i, (place, _, deliveries) in enumerate(arrivals):
        for which in deliveries:
            if replicas.messages:
                replicas.deliver(which % len(replicas.messages))
        replicas.accept(place % 2, bare_request(f"r{i}", supersede=KEY, arrived_at=i, arrived_us=i + jumps[i]))
    for which in [*rest, *[0] * 100]:
        if replicas.messages:
            replicas.deliver(which % len(replicas.messages))
    assert len(replicas.live) == 1
