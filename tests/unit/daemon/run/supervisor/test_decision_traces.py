"""Leases as roots of traces, and the spans of those that were sent."""

from __future__ import annotations

from random import Random
from uuid import UUID

from synthetic.servers.kept_spans import KeptSpans

from rftd.daemon.run.supervisor.decision_writer import DecisionTraces
from rftd.ops.clock import ManualClock
from rftd.ops.ids import derive
from rftd.ops.tracing.tracer import Tracer
from rftd.streams.events.task import TaskLeased
from rftd.streams.log.decision import Decision


def lease(number: int) -> TaskLeased:
    return TaskLeased(
        lease=derive(UUID(int=1), "lease", number),
        slot=0,
        worker=UUID(int=2),
        group=derive(UUID(int=1), "group", number),
        sequence=number,
        stage=0,
        row=0,
        epoch=0,
        rollouts=(0, 1),
        repeat_times=2,
        attempt=1,
        deadline_s=1.0,
        min_version=0,
    )


def test_sampled_lease_has_a_span_after_sending_and_always_the_same_trace() -> None:
    sink = KeptSpans()
    traces = DecisionTraces(Tracer(sink, clock=ManualClock(), random=Random(1), ratio=0.5), UUID(int=1))
    decisions: list[Decision] = [(lease(number), None) for number in range(40)]
    roots = traces.roots(decisions)
    traces.sent(decisions[:20], roots[:20], 1)  # the write of the others failed
    sampled = [root for root in roots[:20] if root is not None and root.sampled]
    assert 0 < len(sampled) < 20
    assert [span.context for span in sink.spans] == sampled
    again = traces.roots(decisions[20:])
    assert again == roots[20:]
    traces.sent(decisions[20:], again, 2)
    assert len(sink.spans) == sum(root is not None and root.sampled for root in roots)
