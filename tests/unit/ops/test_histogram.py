"""A histogram that takes many values at once says what `prometheus_client`'s says of the same values."""

from __future__ import annotations

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from rftd.ops.histogram import Histogram

NUMBERS = st.one_of(st.floats(), st.integers(-3, 3), st.integers(-(2**63), 2**64 - 1))
VALUES = st.lists(st.tuples(st.sampled_from(("a", "b")), st.lists(NUMBERS, max_size=8)), max_size=6)
BUCKETS = st.sampled_from(((0.0, 0.5, 1.0, 2.0), (-1.0, 0.0, 1.0)))


@given(shown=VALUES, buckets=BUCKETS)
def test_it_counts_like_the_clients(shown: list[tuple[str, list[float]]], buckets: tuple[float, ...]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    many = Histogram("h", "text", ["l"], buckets=buckets, registry=ours)
    one = prometheus_client.Histogram("h", "text", ["l"], buckets=buckets, registry=theirs)
    for label, values in shown:
        many.labels(label).observe(values)
        single = one.labels(label)
        for value in values:
            single.observe(value)
    assert told(ours).keys() == told(theirs).keys()
    for place, value in told(theirs).items():
        # Sums are added up in another order.
        assert place[0] == "h_sum" or told(ours)[place] == value, place


def test_a_sum_is_that_of_the_values() -> None:
    registry = CollectorRegistry()
    series = Histogram("h", "text", ["l"], buckets=(1.0, 2.0), registry=registry).labels("a")
    series.observe([0.5, 1.5])
    series.observe([2.25])
    series.observe([])
    assert registry.get_sample_value("h_sum", {"l": "a"}) == 4.25
    assert registry.get_sample_value("h_count", {"l": "a"}) == 3


def test_series_with_a_label_are_dropped() -> None:
    registry = CollectorRegistry()
    histogram = Histogram("h", "text", ["x", "y"], buckets=(1.0,), registry=registry)
    for x in ("1", "2"):
        for y in ("1", "2"):
            histogram.labels(x, y).observe([0.0])
    histogram.remove_by_labels({"y": "1"})
    assert registry.get_sample_value("h_count", {"x": "1", "y": "1"}) is None
    assert registry.get_sample_value("h_count", {"x": "1", "y": "2"}) == 1


def told(registry: CollectorRegistry) -> dict[tuple[str, str, str], float]:
    return {
        (sample.name, sample.labels["l"], sample.labels.get("le", "")): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
