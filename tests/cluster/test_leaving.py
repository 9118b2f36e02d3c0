"""Clients leave, at any moment and in any way, and nothing is computed for them."""

from __future__ import annotations

from tests.cluster.leaving_clients import Place, abandon
from tests.support.balancer import Balancer


def test_of_300_requests_abandoned_at_random_moments_none_goes_on(balancer: Balancer) -> None:
    seen = abandon(Place(balancer.port), list(balancer.servers.values()), 300, seed=23)
    assert seen.ghosts == []
    assert sum(seen.left.values()) == 300
    assert sum(seen.ended.values()) > 100, "too few arrived to say anything"
