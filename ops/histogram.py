"""`Histogram`: cumulative bucket counts by labels, for Prometheus; takes many values at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString


class Histogram(Collector):
    """A histogram like `prometheus_client`'s, but for a single thread: the library's takes a lock for each value."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """Begins without series; `buckets` are the upper bounds, and the highest bucket has none."""
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._bounds: Final = np.array([*buckets, math.inf])
        self._series: dict[tuple[str, ...], Spread] = {}
        registry.register(self)

    def labels(self, *label_values: str) -> Spread:
        """Returns the series with these label values, creating it at the first call."""
        assert len(label_values) == len(self._labels), label_values
        spread = self._series.get(label_values)
        if spread is None:
            spread = self._series[label_values] = Spread(self._bounds)
        return spread

    def remove_by_labels(self, labels: Mapping[str, str]) -> None:
        """Drops every series with all these labels, for example those of an ended experiment."""
        required = [(self._labels.index(name), label_value) for name, label_value in labels.items()]
        for label_values in [
            label_values
            for label_values in self._series
            if all(label_values[i] == label_value for i, label_value in required)
        ]:
            del self._series[label_values]

    def collect(self) -> Iterator[Metric]:
        """Yields the histogram for a scrape."""
        family = Metric(self._name, self._text, "histogram")
        names = [str(floatToGoString(bound)) for bound in self._bounds]  # type: ignore[no-untyped-call]
        for label_values, spread in self._series.items():
            labels = dict(zip(self._labels, label_values, strict=True))
            counts = spread.up_to()
            for index, (name, count) in enumerate(zip(names, counts, strict=True)):
                exemplar = spread.exemplars.get(index)
                family.add_sample(f"{self._name}_bucket", {**labels, "le": name}, count, exemplar=exemplar)
            family.add_sample(f"{self._name}_count", labels, counts[-1])
            if self._bounds[0] >= 0:  # otherwise the sum could fall, which is not allowed for a counter
                family.add_sample(f"{self._name}_sum", labels, spread.total)
        yield family


class Spread:
    """One series of a histogram: bucket counts, sum, and traced example values."""

    def __init__(self, bounds: np.typing.NDArray[np.float64]) -> None:
        """Begins without values; `bounds` are the upper bounds of the buckets."""
        self.total = 0.0
        """Sum of all values."""
        self.exemplars: dict[int, Exemplar] = {}
        """The newest traced value of each bucket that has one."""
        self._bounds = bounds
        self._counts = np.zeros(len(bounds) + 1, dtype=np.int64)

    def observe(self, observed: Sequence[float]) -> None:
        """Counts some values in their buckets; NaN belongs to no bucket."""
        # On the left of an equal bound: `le` of Prometheus includes the bound. NaN sorts above infinity, into the extra
        # slot beyond.
        places = np.searchsorted(self._bounds, np.asarray(observed, dtype=np.float64))
        self._counts += np.bincount(places, minlength=len(self._counts))
        self.total += float(sum(observed))

    def exemplify(self, observed: float, trace_id: str, time_s: float) -> None:
        """Attaches a trace id to the bucket of an observed value."""
        index = int(np.searchsorted(self._bounds, observed))
        if index < len(self._bounds):
            self.exemplars[index] = Exemplar({"trace_id": trace_id}, observed, time_s)

    def up_to(self) -> list[float]:
        """Returns the cumulative count of values up to each bound."""
        return [float(count) for count in self._counts.cumsum()[:-1]]
