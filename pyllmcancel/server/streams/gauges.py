"""Metrics of the streams that can be taken up again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from pyllmcancel.server.streams.kept import KeptAnswer
    from pyllmcancel.server.streams.kept_answers import KeptAnswers


class StreamGauges(Collector):
    """Read at each scrape, in the event loop."""

    def __init__(self, streams: KeptAnswers[KeptAnswer]) -> None:
        self._streams = streams

    def collect(self) -> Iterable[Metric]:
        kept = list(self._streams)
        unread = [one for one in kept if not (one.log.ended or one.n_readers)]
        n_bytes = sum(one.log.end - one.log.begin for one in kept)
        for name, value, text in (
            ("streams_kept", len(kept), "Streams that can be taken up again, those that have ended included."),
            ("streams_unread", len(unread), "Those of them that are being generated, and that no client reads."),
            ("streams_bytes", n_bytes, "Bytes of the streams that can be taken up again."),
        ):
            yield GaugeMetricFamily(f"pyllmcancel_{name}", text, value)
