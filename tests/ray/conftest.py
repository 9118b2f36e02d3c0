"""Two replicas under Ray Serve, in HAProxy mode. Skipped where Ray is not installed: it is not part of CI."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ray.cluster import MISSING, RayCluster, is_missing

# The packaged model: its context is 2,048 tokens, which many requests at once need seconds for.
SIZE = {"parallel": 8, "ctx_size": 16_384, "max_queue": 2_000}

OTHER = "/other"  # the path of a second application


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    if is_missing():
        pytest.skip(MISSING)
    with RayCluster({"/": {"replicas": 2, "drain": 2, **SIZE}, OTHER: {"alias": "other", "parallel": 2}}) as running:
        yield running.started()


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test leaves the replicas idle."""
    yield
    if "cluster" in request.fixturenames:
        for replica in request.getfixturevalue("cluster").find_replicas():
            replica.wait_idle()
