"""The scenarios: events in the life of a fleet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from bench.fleet_simulation.rules import HOUR, K, Settings
from bench.fleet_simulation.world import World

SEEN_HUNG = 6.0  # seconds until a replica that hangs is not asked: docs/measured/scale-out.md


# -- balancers --------------------------------------------------------------------------------------------------------


def reload(world: World, n_replicas: int, *, keep: bool = True) -> None:
    """Each balancer reads its file again. One that is younger than ten seconds passes on no names: not `keep`."""
    for i, old in enumerate(world.balancers):
        world.balancers[i] = old.successor(n_replicas, world.now, old if keep else None)


def restart(world: World, *, peer: bool) -> None:
    """The first balancer dies, and begins anew; with a `peer` it learns the names of the second one."""
    old = world.balancers[0]
    for lives in list(world.on.values()):
        for live in [one for one in lives if one.process is old]:
            world.cut(live)
    world.balancers[0] = old.successor(len(old.up), world.now, world.balancers[1] if peer else None)


# -- replicas ---------------------------------------------------------------------------------------------------------


def drain(world: World, first: int, n: int) -> None:
    for process in world.balancers:
        for replica in range(first, first + n):
            process.mark(replica, is_open=False)


def mark_soon(world: World, replica: int, after: float, *, up: bool) -> None:
    """Each balancer sees it at its next check, of which there is one each second."""

    def see(balancer: int) -> None:
        if (replica not in world.dead and replica not in world.hanging) == up:
            world.balancers[balancer].mark(replica, up=up)

    for i in range(len(world.balancers)):
        world.at(world.now + after + world.chance.random(), partial(see, i))


def die(world: World, first: int, n: int, back_after: float) -> None:
    """A connection is refused, or a check and two more fail: then a balancer knows."""
    for replica in range(first, first + n):
        world.dead.add(replica)
        for live in list(world.on[replica]):
            world.cut(live)
        mark_soon(world, replica, 1.0, up=False)
        world.at(world.now + back_after, partial(come_back, world, replica))


def come_back(world: World, replica: int) -> None:
    world.dead.discard(replica)
    world.hanging.pop(replica, None)
    mark_soon(world, replica, 0.0, up=True)


def hang(world: World, first: int, n: int, seconds: float) -> None:
    """They compute nothing for so long, then they go on with what they have."""
    for replica in range(first, first + n):
        world.hanging[replica] = world.now + seconds
        for live in world.on[replica]:
            live.ends += seconds
        mark_soon(world, replica, SEEN_HUNG - 0.5, up=False)
        world.at(world.now + seconds, partial(come_back, world, replica))


# -- scenarios --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A life of a fleet.

    Attributes
    ----------
    happens
        By the share of the time after which it does; it is given the world and a hundredth of its replicas.
    more
        Hundredths of replicas that are added.
    young
        Whether the balancers have begun with it, so that no name moves for load or a drain.
    """

    what: str
    happens: dict[float, Callable[[World, int], None]] = field(default_factory=dict)
    more: int = 0
    young: bool = False
    balancers: int = 1
    settings: Settings = field(default_factory=Settings)


def scenarios(n: int, settings: Settings) -> dict[str, Scenario]:
    """Return the scenarios of `n` replicas."""
    paired = Settings(slots=settings.slots, load_factor=settings.load_factor, paired=True)
    small = Settings(slots=settings.slots, load_factor=settings.load_factor, size=80 * K)
    grown = n + 10 * max(n // 100, 1)
    crash = {0.5: lambda world, part: die(world, 0, part, 20.0)}
    return {
        "steady": Scenario(what="nothing happens", settings=settings),
        "young": Scenario(what="the balancer's first hour", young=True, settings=settings),
        "up": Scenario(
            what="10 % more replicas, by a reload",
            happens={0.5: lambda world, _: reload(world, grown)},
            more=10,
            settings=settings,
        ),
        "up-early": Scenario(
            what="… by a reload in a balancer's first 10 s",
            happens={0.5: lambda world, _: reload(world, grown, keep=False)},
            more=10,
            settings=settings,
        ),
        "drain": Scenario(
            what="10 % of the replicas are drained",
            happens={0.5: lambda world, part: drain(world, 0, 10 * part)},
            settings=settings,
        ),
        "drain-young": Scenario(
            what="… in the balancer's first hour",
            happens={0.5: lambda world, part: drain(world, 0, 10 * part)},
            young=True,
            settings=settings,
        ),
        "crash": Scenario(what="1 % of the replicas die, and are back after 20 s", happens=crash, settings=settings),
        "hang": Scenario(
            what="1 % of the replicas hang for 15 s",
            happens={0.5: lambda world, part: hang(world, 0, part, 15.0)},
            settings=settings,
        ),
        "restart": Scenario(
            what="the balancer starts again, no peer",
            happens={0.5: lambda world, _: restart(world, peer=False)},
            settings=settings,
        ),
        "small": Scenario(what="tables for 80k names instead of 200k", settings=small),
        "two": Scenario(what="two balancers, each request by either", balancers=2, settings=paired),
        "two-crash": Scenario(what="… 1 % of the replicas die", balancers=2, happens=crash, settings=paired),
        "two-restart": Scenario(
            what="… one of them starts again",
            balancers=2,
            happens={0.5: lambda world, _: restart(world, peer=True)},
            settings=paired,
        ),
    }


def began(scenario: Scenario) -> float:
    """Return when the balancers began, on the world's clock."""
    return 0.0 if scenario.young else -HOUR
