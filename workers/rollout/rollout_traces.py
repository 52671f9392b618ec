"""`RolloutTraces`: the spans of an explorer, from a lease that it takes to the experiences that it hands over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from uuid import UUID

import msgspec

from rftd.ops.tracing import conventions as names
from rftd.ops.tracing.trace_context import TraceContext, root_of
from rftd.ops.tracing.tracer import Attribute, SpanKind, Tracer, TraceSpan, current
from rftd.streams.events.experience import ExperienceProduced, RolloutFailed
from rftd.streams.events.task import EvalLeased, TaskLeased
from rftd.streams.events.weights import WeightsPublished
from rftd.streams.log import topics
from rftd.streams.log.decision import slot_partition
from rftd.streams.log.topics import partition_of
from rftd.workers.rollout.rollouts import RolloutOutcome
from rftd.workers.workflows.attempt import RolloutRequest
from rftd.workers.workflows.result import RolloutResult


class RolloutTraces:
    """Makes the spans of one explorer. There is none where nothing is traced."""

    def __init__(self, tracer: Tracer, experiment: UUID, context_of: Callable[[Hashable], TraceContext | None]) -> None:
        """`context_of` gives the place in a trace of a lease, by its id, and of weights, by version and generation."""
        self._tracer = tracer
        self._context_of = context_of
        self._experiment = str(experiment)
        self._weights = partition_of(topics.WEIGHTS, experiment).number

    async def working(self, lease: TaskLeased | EvalLeased, work: Callable[[], Awaitable[None]]) -> None:
        """Does the work of a lease, in a span of its own if it is sampled."""
        span = self._taken(lease)
        if span is None:
            await work()
        else:
            with span:
                await work()

    def _taken(self, lease: TaskLeased | EvalLeased) -> TraceSpan | None:
        parent = self._context_of(lease.lease)
        evaluates = isinstance(lease, EvalLeased)
        if not (evaluates or self._tracer.wants(parent, lease.lease)):
            return None
        about: dict[str, Attribute] = {
            **names.messaging("process", topics.TASKS, slot_partition(lease.slot).number),
            names.EXPERIMENT_ID: self._experiment,
            names.LEASE_ID: str(lease.lease),
        }
        if isinstance(lease, EvalLeased):
            about |= {names.EVAL_ID: str(lease.eval), names.WEIGHT_VERSION: lease.version}
        else:
            about |= {names.GROUP_ID: str(lease.group), names.ITEMS: len(lease.rollouts)}
        # Of a daemon that does not trace: the trace begins here, with the same ids.
        return self._tracer.begin(
            f"process {topics.TASKS}",
            SpanKind.CONSUMER,
            parent=parent,
            cause=lease.lease,
            always=evaluates,
            attributes=about,
        )

    def failed(self, lease: TaskLeased, events: Iterable[object], began_ns: int) -> None:
        """Records the rollouts that failed of a lease that is not sampled: an error is always traced."""
        parent = self._context_of(lease.lease)
        for event in events:
            if not isinstance(event, RolloutFailed):
                continue
            about: dict[str, Attribute] = {**names.generative(names.ROLLOUT), names.EXPERIMENT_ID: self._experiment}
            about |= {names.GROUP_ID: str(lease.group), names.ROLLOUT_NUMBER: event.rollout}
            span = self._tracer.always(names.ROLLOUT, parent=parent, attributes=about)
            span.start_ns = began_ns
            span.fail(event.code)
            span.end()

    def loading(self, target: WeightsPublished) -> TraceSpan:
        """The span of weights that are loaded, below their publication."""
        return self._tracer.always(
            names.LOAD_WEIGHTS,
            SpanKind.CONSUMER,
            parent=self._context_of((target.version, target.generation)),
            attributes={
                **names.messaging("process", topics.WEIGHTS, self._weights),
                names.EXPERIMENT_ID: self._experiment,
                names.WEIGHT_VERSION: target.version,
                names.GENERATION: target.generation,
                names.WEIGHT_METHOD: target.method,
                names.SIZE_BYTES: target.size_bytes,
            },
        )


def with_spans(requests: Sequence[RolloutRequest], *, every: bool = True) -> Sequence[RolloutRequest]:
    """The requests, each with a span below the one that is open; as they are where none is.

    Unless `every` one is wanted, only those have a span whose ids are among the share that is sampled.
    """
    parent = current()
    if parent is None:
        return requests
    tracer = parent.tracer
    return [
        msgspec.structs.replace(request, span=_begun(parent, request))
        if every or tracer.samples(root_of(request.id)[0])
        else request
        for request in requests
    ]


def _begun(parent: TraceSpan, request: RolloutRequest) -> TraceSpan:
    about: dict[str, Attribute] = {**names.generative(names.ROLLOUT), names.ROLLOUT_NUMBER: request.number}
    about |= {key: parent.attributes[key] for key in (names.EXPERIMENT_ID, names.GROUP_ID) if key in parent.attributes}
    return parent.child(names.ROLLOUT, attributes={**about, names.ROLLOUT_ID: str(request.id)})


def end_rollout(outcome: RolloutOutcome) -> None:
    """Ends the span of a rollout, if it has one, with what came of it."""
    span = outcome.request.span
    if span is None:
        return
    result = outcome.result
    if isinstance(result, RolloutResult):
        response = len(result.tokens) - result.prompt_tokens
        span.attributes |= {
            names.REWARD_VALUE: float(result.reward),
            names.FINISH: result.finish,
            names.GEN_AI_INPUT_TOKENS: result.prompt_tokens,
            names.GEN_AI_OUTPUT_TOKENS: response,
        }
        if result.spans:
            span.attributes[names.WEIGHT_VERSION] = result.spans[-1].version
    else:
        span.fail(result)
    span.end()


def end_cancelled(requests: Iterable[RolloutRequest]) -> None:
    """Ends the spans of rollouts that came to no end."""
    for request in requests:
        if request.span is not None and not request.span.end_ns:
            request.span.fail(names.CANCELLED)
            request.span.end()


def created(outcome: RolloutOutcome, event: ExperienceProduced | RolloutFailed) -> str | None:
    """The header of what a rollout leaves in the log, with which its trace ends; None if that is not sampled."""
    span = outcome.request.span
    if span is None:
        return None
    partition = partition_of(topics.EXPERIENCES, event.group).number
    about: dict[str, Attribute] = {**names.messaging("create", topics.EXPERIENCES, partition)}
    if isinstance(event, ExperienceProduced):
        about[names.EXPERIENCE_ID] = str(event.experience)
    made = span.child(f"create {topics.EXPERIENCES}", SpanKind.PRODUCER, attributes=about)
    made.end()
    return made.context.traceparent
