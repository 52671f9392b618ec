"""`DispatchTraces`: where the traces of rollouts begin: each lease is the root of one, whose ids follow from it."""

from __future__ import annotations

from collections.abc import Sequence

from rftd.ops.tracing import conventions as names
from rftd.ops.tracing.span import Attribute, SpanKind
from rftd.ops.tracing.tracer import Tracer
from rftd.streams import topics
from rftd.streams.decision import Decision, slot_partition
from rftd.streams.events.registry import Event
from rftd.streams.events.task import EvalLeased, TaskLeased


class DispatchTraces:
    """Says what leases carry, and records when they were sent."""

    def __init__(self, tracer: Tracer, experiment: str) -> None:
        self._tracer = tracer
        self._experiment = experiment

    def traceparent_of(self, event: Event) -> str | None:
        """The header of a lease's trace, sampled or not; None for other events.

        A daemon that was killed before the write decides the same lease again, and names the same trace.
        """
        if not isinstance(event, TaskLeased | EvalLeased):
            return None
        return self._tracer.root(event.lease, always=isinstance(event, EvalLeased)).traceparent

    def sent(self, decisions: Sequence[Decision], began_ns: int) -> None:
        """Records a span for each sampled lease among what is in the log since just now."""
        for event, _ in decisions:
            if not isinstance(event, TaskLeased | EvalLeased):
                continue
            context = self._tracer.root(event.lease, always=isinstance(event, EvalLeased))
            if context.sampled:
                self._tracer.record(
                    f"send {topics.TASKS}",
                    context,
                    SpanKind.PRODUCER,
                    start_ns=began_ns,
                    attributes=self._attributes(event),
                )

    def _attributes(self, event: TaskLeased | EvalLeased) -> dict[str, Attribute]:
        about: dict[str, Attribute] = {
            **names.messaging("send", topics.TASKS, slot_partition(event.slot).number),
            names.EXPERIMENT_ID: self._experiment,
            names.LEASE_ID: str(event.lease),
            names.STAGE: event.stage,
            names.ATTEMPT: event.attempt,
        }
        if isinstance(event, TaskLeased):
            about[names.GROUP_ID] = str(event.group)
            about[names.ITEMS] = len(event.rollouts)
        else:
            about[names.EVAL_ID] = str(event.eval)
            about[names.ITEMS] = event.row_end - event.row_start
            about[names.WEIGHT_VERSION] = event.version
        return about
