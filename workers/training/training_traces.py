"""`TrainingTraces`: the spans of a trainer: steps, what they consumed, weights that are published, checkpoints."""

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
"""The most experiences that a step's span links to: those that are sampled, the first of them."""

PLANS: Final = 256
"""The newest plans whose places are kept: far more than are planned ahead."""


class PlanTraces:
    """A fold that hands every event on, and keeps the places of the newest plans in their traces."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._planned: Newest[UUID, TraceContext] = Newest(PLANS)

    def apply(self, decoded: Decoded) -> None:
        """Takes one event in."""
        self._fold.apply(decoded)
        if isinstance(decoded.event, BatchPlanned) and (context := parsed(decoded.head.traceparent)) is not None:
            self._planned.put(decoded.event.batch, context)

    def of(self, batch: UUID) -> TraceContext | None:
        """The place of a batch's plan; None if it has none, or is older."""
        return self._planned.get(batch)


class TrainingTraces:
    """Makes the spans of one trainer, all of them; none without a tracer."""

    def __init__(self, tracer: Tracer | None, experiment: UUID, plans: PlanTraces | None = None) -> None:
        """`plans` are those that are followed; without them a step is the root of a trace."""
        self._tracer = tracer
        self._plans = plans
        self._experiment = str(experiment)
        self._weights = partition_of(topics.WEIGHTS, experiment).number

    @property
    def on(self) -> bool:
        """True if anything is traced."""
        return self._tracer is not None

    def step(self, plan: BatchPlanned) -> AbstractContextManager[TraceSpan | None]:
        """The span of a planned step, below its plan, with what follows at once: publication and checkpoint."""
        if self._tracer is None:
            return nullcontext()
        about: dict[str, Attribute] = {names.STEP: plan.step, names.STAGE: plan.stage, names.BATCH_ID: str(plan.batch)}
        about[names.ITEMS] = len(plan.experiences) + len(plan.rows)
        return self._tracer.always(
            names.TRAIN_STEP,
            parent=None if self._plans is None else self._plans.of(plan.batch),
            attributes={names.EXPERIMENT_ID: self._experiment, **about},
        )

    def part(self, name: str) -> AbstractContextManager[TraceSpan | None]:
        """The span of a part of the step whose span is open."""
        parent = current()
        return nullcontext() if parent is None else parent.child(name)

    def publication(self, version: int, generation: int) -> AbstractContextManager[TraceSpan | None]:
        """The span of weights that are published: below the step that made them, if its span is open."""
        if self._tracer is None:
            return nullcontext()
        about: dict[str, Attribute] = {
            **names.messaging("send", topics.WEIGHTS, self._weights),
            names.EXPERIMENT_ID: self._experiment,
            names.WEIGHT_VERSION: version,
            names.GENERATION: generation,
        }
        return self._tracer.always(names.PUBLISH_WEIGHTS, SpanKind.PRODUCER, attributes=about)

    def checkpoint(self, done: StepCompleted) -> AbstractContextManager[TraceSpan | None]:
        """The span of a checkpoint: below its step."""
        if self._tracer is None:
            return nullcontext()
        about: dict[str, Attribute] = {names.STEP: done.step, names.STAGE: done.stage}
        return self._tracer.always(names.CHECKPOINT, attributes={names.EXPERIMENT_ID: self._experiment, **about})


def link_consumed(span: TraceSpan, traceparents: Sequence[str]) -> None:
    """Links a step's span to the experiences that it consumes, given their headers."""
    contexts = [context for text in traceparents if (context := exported(text)) is not None]
    span.links = contexts[:LINKS]
    if len(contexts) > LINKS:
        span.attributes[names.LINKS_LEFT_OUT] = len(contexts) - LINKS


def note_step(span: TraceSpan, done: StepCompleted) -> None:
    """Adds what a step came to."""
    span.attributes |= {names.TOKENS: done.tokens, names.GENERATION: done.generation}
    if done.skipped:
        span.attributes[names.SKIPPED] = True
