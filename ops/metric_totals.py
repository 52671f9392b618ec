"""Metrics set to totals at a scrape instead of being counted: `ReadTotals`, of sums over the tables, and
`StreamTotals`, of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class ReadTotals(Collector):
    """A counter set to totals read elsewhere, and never decreasing within one process."""

    def __init__(self, name: str, text: str, labels: Sequence[str], *, registry: CollectorRegistry) -> None:
        """`name` ends in `_total`, as in every exposition of a counter."""
        self._name: Final = name.removesuffix("_total")
        """Name of the counter without `_total`, which the library adds."""
        self._text = text
        """Help text of the counter."""
        self._labels = tuple(labels)
        """Names of the labels."""
        self._shown: dict[tuple[str, ...], float] = {}
        """Total shown last, by values of the labels."""
        registry.register(self)

    def update(self, totals: Mapping[tuple[str, ...], float]) -> None:
        """Sets the totals by labels, and drops all other series."""
        # A falling value would be taken for a restart, and the whole value for an increase.
        self._shown = {labels: max(total, self._shown.get(labels, 0.0)) for labels, total in totals.items()}

    def collect(self) -> Iterator[Metric]:
        """Yields the counter for a scrape."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, total in sorted(self._shown.items()):
            family.add_metric(labels, total)
        yield family


class StreamTotals(Collector):
    """Numbers of records in the log and in the tables, by stream, read at a scrape."""

    def __init__(self) -> None:
        """Begins without streams."""
        self._produced: dict[str, int] = {}
        """Number of records in the log, by stream."""
        self._consumed: dict[str, int] = {}
        """Number of records applied by the projector, by stream."""

    def update(self, *, produced: Mapping[str, int], consumed: Mapping[str, int]) -> None:
        """Stores the number of records of each stream, and the number applied by the projector."""
        self._produced = dict(produced)
        self._consumed = dict(consumed)

    def collect(self) -> Iterator[Metric]:
        """Yields the counters for a scrape."""
        produced = CounterMetricFamily(
            "rftd_stream_produced_records", "Records acknowledged by the log", labels=["stream"]
        )
        applied = CounterMetricFamily(
            "rftd_stream_consumed_records", "Records whose effect is committed", labels=["stream", "consumer_group"]
        )
        lag = GaugeMetricFamily(
            "rftd_stream_lag_records", "Records of the log not yet consumed", labels=["stream", "consumer_group"]
        )
        behind = GaugeMetricFamily(
            "rftd_projection_lag_events", "Events in the log not yet applied by the projection", labels=["projection"]
        )
        for stream, total in sorted(self._produced.items()):
            done = self._consumed.get(stream)
            produced.add_metric([stream], total)
            if done is not None:
                applied.add_metric([stream, "projector"], done)
                # The numbers were read at different moments: the projector may be ahead of the older number.
                lag.add_metric([stream, "projector"], max(0, total - done))
        behind.add_metric(["all"], sum(max(0, self._produced.get(s, 0) - done) for s, done in self._consumed.items()))
        yield from (produced, applied, lag, behind)
