"""Clients leave, at any moment and in any way, and nothing is computed for them."""

from __future__ import annotations

import pytest

from tests.ray.cluster import RayCluster
from tests.ray.leaving_clients import abandon


@pytest.mark.timeout(600)
def test_of_400_requests_abandoned_at_random_moments_none_goes_on(cluster: RayCluster) -> None:
    seen = abandon(cluster, 400, seed=23)
    assert seen.ghosts == []
    assert sum(seen.left.values()) == 400
    assert sum(seen.ended.values()) > 150, "too few arrived to say anything"
    assert {phase for phase, _ in seen.ended} >= {"waiting", "prefill", "decode"}
