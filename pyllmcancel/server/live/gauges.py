"""Metric of the events that readers can take up again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from pyllmcancel.server.live.feed import Feed


class FeedGauges(Collector):
    """Read at each scrape, in the event loop."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def collect(self) -> Iterable[Metric]:
        ring = self._feed.ring
        n_kept, text = ring.newest - ring.first + 1, "Events that readers of the feed can take up again."
        yield GaugeMetricFamily("pyllmcancel_events_kept", text, n_kept)
