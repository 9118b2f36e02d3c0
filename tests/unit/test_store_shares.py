"""Owners share the store: the one that has the most makes room, and none loses anything within its share."""

import json

import pytest

from pyllmcancel.server.responses.storage.database import StoreFullError
from tests.support.marks import mostly_long
from tests.support.stores import LIMIT, Stores, add, add_many, item, response, status_of

pytest_plugins = ("tests.support.store_fixtures",)

KIB = "x" * 1_000


@pytest.mark.parametrize("in_memory", mostly_long([False, True], False))
def test_a_flood_of_one_owner_costs_another_nothing(opened: Stores, in_memory: bool) -> None:
    store = opened(None if in_memory else "", max_bytes=50_000)
    add_many(store, "a", 10, "ann", text=KIB)
    add_many(store, "b", 200, "bob", text=KIB)
    assert {status_of(store, f"a{number}", "ann") for number in range(10)} == {"completed"}
    assert (status_of(store, "b0", "bob"), status_of(store, "b199", "bob")) == (None, "completed")


def test_who_has_more_than_its_share_makes_room_for_others(opened: Stores) -> None:
    store = opened(max_bytes=50_000)
    add_many(store, "a", 40, "ann", text=KIB)
    add_many(store, "b", 40, "bob", text=KIB)
    kept = {
        owner: sum(status_of(store, f"{owner[0]}{number}", owner) is not None for number in range(40))
        for owner in ("ann", "bob")
    }
    assert abs(kept["ann"] - kept["bob"]) <= 1
    assert (status_of(store, "a0", "ann"), status_of(store, "a39", "ann")) == (None, "completed")


def test_what_does_not_fit_beside_others_shares_is_refused_and_costs_nothing(opened: Stores) -> None:
    store = opened(max_bytes=50_000)
    add(store, "a", "ann", text=KIB)
    add(store, "b", "bob", text=KIB)
    with pytest.raises(StoreFullError, match="no room"):
        add(store, "long", "bob", text="x" * 49_000)
    assert (status_of(store, "a", "ann"), status_of(store, "b", "bob")) == ("completed", "completed")


def test_an_answer_that_grows_counts_as_its_owners(opened: Stores) -> None:
    store = opened(max_bytes=50_000)
    add(store, "a", "ann", text="x" * 20_000)
    add(store, "old", "bob", text="x" * 20_000)
    add(store, "new", "bob", status="in_progress")
    store.finish("bob", response("new", text="x" * 20_000), b"").result(LIMIT)
    assert (status_of(store, "a", "ann"), status_of(store, "old", "bob")) == ("completed", None)
    assert status_of(store, "new", "bob") == "completed"


def test_shares_are_the_same_after_the_next_start(opened: Stores) -> None:
    store = opened(max_bytes=50_000)
    add(store, "a", "ann", text=KIB)
    add_many(store, "b", 20, "bob", text=KIB)
    store.close()
    store = opened(max_bytes=20_000)
    add(store, "c", "carol", text=KIB)
    assert status_of(store, "a", "ann") == "completed"
    assert (status_of(store, "b0", "bob"), status_of(store, "b19", "bob")) == (None, "completed")


def test_what_was_deleted_counts_no_more(opened: Stores) -> None:
    store = opened(max_bytes=50_000)
    for number in range(20):
        add(store, f"a{number}", "ann", text=KIB)
        store.delete("ann", f"a{number}").result(LIMIT)
    add_many(store, "b", 30, "bob", text=KIB)
    assert status_of(store, "b0", "bob") == "completed"


def test_owners_take_turns_at_the_stores_thread(opened: Stores) -> None:
    store = opened()
    begun, may_end = store._commits._changed, []

    def wait(_connection: object) -> None:
        with begun:
            begun.wait_for(lambda: may_end, LIMIT)

    first = store._commits.do(wait, "ann")
    while store._commits._todo:  # the thread has not taken it
        pass
    order: list[str] = []
    flood = [store._commits.do(lambda _, n=n: order.append(f"ann {n}"), "ann") for n in range(100)]
    bobs = store._commits.do(lambda _: order.append("bob"), "bob")
    with begun:
        may_end.append(True)
        begun.notify_all()
    for done in (first, *flood, bobs):
        done.result(LIMIT)
    assert order[:3] == ["ann 0", "bob", "ann 1"]


def test_items_count_with_their_response(opened: Stores) -> None:
    store = opened(max_bytes=10_000)
    add(store, "a", "ann")
    store.add("bob", response("b"), [item("b") | {"text": "x" * 8_000}]).result(LIMIT)
    store.add("bob", response("c"), [item("c") | {"text": "x" * 8_000}]).result(LIMIT)
    assert (status_of(store, "a", "ann"), status_of(store, "b", "bob")) == ("completed", None)
    assert json.loads(store.get("bob", "c").result(LIMIT).response)["id"] == "c"  # type: ignore[union-attr]
