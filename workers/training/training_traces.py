"""`TrainingTraces`: the spans of a trainer: steps, consumed experiences, published weights, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final
from uuid import UUID

from rftd.ops.tracing import conventions as names
from rftd.ops.tracing.trace_context import TraceContext, exported, parsed
from rftd.ops.tracing.tracer import Attribute, SpanKind, Tracer, TraceSpan, current
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.step import StepCompleted
from rftd.streams.log import topics
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.follower import Fold
from rftd.streams.log.newest import Newest
from rftd.streams.log.topics import partition_of

LINKS: Final = 128
"""Maximum number of experiences linked from a step's span: the first sampled ones."""

PLANS: Final = 256
"""Number of newest plans with a stored trace context: far more than are planned ahead."""


class PlanTraces:
    """A fold wrapped around another one: stores the trace contexts of the newest plans, and applies every event to
    `fold`.
    """

    def __init__(self, fold: Fold) -> None:
        """Wraps `fold`."""
        self._fold = fold
        self._planned: Newest[UUID, TraceContext] = Newest(PLANS)

    def apply(self, decoded: Decoded) -> None:
        """Applies one event to the wrapped fold, and stores the trace context of a plan."""
        self._fold.apply(decoded)
        if isinstance(decoded.event, BatchPlanned) and (context := parsed(decoded.head.traceparent)) is not None:
            self._planned.put(decoded.event.batch, context)

    def of(self, batch: UUID) -> TraceContext | None:
        """Returns the trace context of a batch's plan; None for an untraced plan, or one too old."""
        return self._planned.get(batch)


class TrainingTraces:
    """Opens the spans of one trainer: steps, publications, checkpoints; none without a tracer."""

    def __init__(self, tracer: Tracer | None, experiment: UUID, plans: PlanTraces | None = None) -> None:
        """`plans` has the trace contexts of plans; without it, a step's span is the root of a trace."""
        self._tracer = tracer
        self._plans = plans
        self._experiment = str(experiment)
        self._weights = partition_of(topics.WEIGHTS, experiment).number

    @property
    def on(self) -> bool:
        """True if there is a tracer."""
        return self._tracer is not None

    def step(self, plan: BatchPlanned) -> AbstractContextManager[TraceSpan | None]:
        """A context with the span of a step, a child of its plan's span; it covers the publication and checkpoint that
        follow.
        """
        if self._tracer is None:
            return nullcontext()
        attributes: dict[str, Attribute] = {
            names.STEP: plan.step,
            names.STAGE: plan.stage,
            names.BATCH_ID: str(plan.batch),
        }
        attributes[names.ITEMS] = len(plan.experiences) + len(plan.rows)
        return self._tracer.always(
            names.TRAIN_STEP,
            parent=None if self._plans is None else self._plans.of(plan.batch),
            attributes={names.EXPERIMENT_ID: self._experiment, **attributes},
        )

    def part(self, name: str) -> AbstractContextManager[TraceSpan | None]:
        """A context with the span of a part of the step, such as assembling the batch."""
        parent = current()
        return nullcontext() if parent is None else parent.child(name)

    def publication(self, version: int, generation: int) -> AbstractContextManager[TraceSpan | None]:
        """A context with the span of a publication, a child of the step's span if that is still open."""
        if self._tracer is None:
            return nullcontext()
        attributes: dict[str, Attribute] = {
            **names.messaging("send", topics.WEIGHTS, self._weights),
            names.EXPERIMENT_ID: self._experiment,
            names.WEIGHT_VERSION: version,
            names.GENERATION: generation,
        }
        return self._tracer.always(names.PUBLISH_WEIGHTS, SpanKind.PRODUCER, attributes=attributes)

    def checkpoint(self, done: StepCompleted) -> AbstractContextManager[TraceSpan | None]:
        """A context with the span of a checkpoint, a child of the span of the step saved."""
        if self._tracer is None:
            return nullcontext()
        attributes: dict[str, Attribute] = {names.STEP: done.step, names.STAGE: done.stage}
        return self._tracer.always(names.CHECKPOINT, attributes={names.EXPERIMENT_ID: self._experiment, **attributes})


def link_consumed(span: TraceSpan, traceparents: Sequence[str]) -> None:
    """Links a step's span to the spans of its experiences, by their trace headers."""
    contexts = [context for text in traceparents if (context := exported(text)) is not None]
    span.links = contexts[:LINKS]
    if len(contexts) > LINKS:
        span.attributes[names.LINKS_LEFT_OUT] = len(contexts) - LINKS


def note_step(span: TraceSpan, done: StepCompleted) -> None:
    """Adds tokens, generation and a skip of the step to the span."""
    span.attributes |= {names.TOKENS: done.tokens, names.GENERATION: done.generation}
    if done.skipped:
        span.attributes[names.SKIPPED] = True
