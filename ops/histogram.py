"""`Histogram`: counts of values up to each bound, by labels, for Prometheus; takes many values at once."""

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
    """A histogram like that of `prometheus_client`, but of one thread: that one takes a lock for each value."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._bounds: Final = np.array([*buckets, math.inf])
        self._series: dict[tuple[str, ...], Spread] = {}
        registry.register(self)

    def labels(self, *values: str) -> Spread:
        """The series with these values of the labels."""
        assert len(values) == len(self._labels), values
        found = self._series.get(values)
        if found is None:
            found = self._series[values] = Spread(self._bounds)
        return found

    def remove_by_labels(self, labels: Mapping[str, str]) -> None:
        """Drops every series with these labels."""
        wanted = [(self._labels.index(name), value) for name, value in labels.items()]
        for values in [values for values in self._series if all(values[i] == value for i, value in wanted)]:
            del self._series[values]

    def collect(self) -> Iterator[Metric]:
        family = Metric(self._name, self._text, "histogram")
        names = [str(floatToGoString(bound)) for bound in self._bounds]  # type: ignore[no-untyped-call]
        for values, spread in self._series.items():
            labels = dict(zip(self._labels, values, strict=True))
            counts = spread.up_to()
            for place, (name, count) in enumerate(zip(names, counts, strict=True)):
                exemplar = spread.exemplars.get(place)
                family.add_sample(f"{self._name}_bucket", {**labels, "le": name}, count, exemplar=exemplar)
            family.add_sample(f"{self._name}_count", labels, counts[-1])
            if self._bounds[0] >= 0:  # else the sum may fall, which a counter must not
                family.add_sample(f"{self._name}_sum", labels, spread.total)
        yield family


class Spread:
    """One series of a histogram."""

    def __init__(self, bounds: np.typing.NDArray[np.float64]) -> None:
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        """The newest traced value of each bucket that has one."""
        self._bounds = bounds
        self._counts = np.zeros(len(bounds) + 1, dtype=np.int64)

    def observe(self, values: Sequence[float]) -> None:
        """Takes in some values. One that is not a number is in no bucket."""
        # Left of an equal bound: `le` of Prometheus includes it. NaN sorts above infinity, into the one place beyond.
        places = np.searchsorted(self._bounds, np.asarray(values, dtype=np.float64))
        self._counts += np.bincount(places, minlength=len(self._counts))
        self.total += float(sum(values))

    def exemplify(self, value: float, trace_id: str, time_s: float) -> None:
        """Names the trace of one of the values."""
        place = int(np.searchsorted(self._bounds, value))
        if place < len(self._bounds):
            self.exemplars[place] = Exemplar({"trace_id": trace_id}, value, time_s)

    def up_to(self) -> list[float]:
        """The number of values that are not above each bound."""
        return [float(count) for count in self._counts.cumsum()[:-1]]
