"""`RolloutTraces`: the spans of an explorer, from a lease taken to the experiences handed over to the outbox."""

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
    """Opens the spans of one explorer's work, each as a child of its cause's span; work outside the sample
    gets none.
    """

    def __init__(self, tracer: Tracer, experiment: UUID, context_of: Callable[[Hashable], TraceContext | None]) -> None:
        """`context_of` returns the trace context of a lease by id, or of weights by (version, generation); None if not
        traced.
        """
        self._tracer = tracer
        self._context_of = context_of
        self._experiment = str(experiment)
        """Id of the experiment, as a span attribute."""
        self._weights = partition_of(topics.WEIGHTS, experiment).number
        """Number of the partition of weights."""

    async def working(self, lease: TaskLeased | EvalLeased, work: Callable[[], Awaitable[None]]) -> None:
        """Awaits the `work` of a lease, within a span if the lease is in the sample."""
        span = self._lease_span(lease)
        if span is None:
            await work()
        else:
            with span:
                await work()

    def _lease_span(self, lease: TaskLeased | EvalLeased) -> TraceSpan | None:
        """Returns the span of a lease; None outside the sample."""
        parent = self._context_of(lease.lease)
        evaluates = isinstance(lease, EvalLeased)
        if not (evaluates or self._tracer.wants(parent, lease.lease)):
            return None
        attributes: dict[str, Attribute] = {
            **names.messaging("process", topics.TASKS, slot_partition(lease.slot).number),
            names.EXPERIMENT_ID: self._experiment,
            names.LEASE_ID: str(lease.lease),
        }
        if isinstance(lease, EvalLeased):
            attributes |= {names.EVAL_ID: str(lease.eval), names.WEIGHT_VERSION: lease.version}
        else:
            attributes |= {names.GROUP_ID: str(lease.group), names.ITEMS: len(lease.rollouts)}
        # If the daemon does not trace, the trace begins here, with the same ids.
        return self._tracer.begin(
            f"process {topics.TASKS}",
            SpanKind.CONSUMER,
            parent=parent,
            cause=lease.lease,
            always=evaluates,
            attributes=attributes,
        )

    def failed(self, lease: TaskLeased, events: Iterable[object], began_ns: int) -> None:
        """Records a span for each failed rollout of an unsampled lease, because errors are always traced; `began_ns` is
        the start.
        """
        parent = self._context_of(lease.lease)
        for event in events:
            if not isinstance(event, RolloutFailed):
                continue
            attributes: dict[str, Attribute] = {
                **names.generative(names.ROLLOUT),
                names.EXPERIMENT_ID: self._experiment,
            }
            attributes |= {names.GROUP_ID: str(lease.group), names.ROLLOUT_NUMBER: event.rollout}
            span = self._tracer.always(names.ROLLOUT, parent=parent, attributes=attributes)
            span.start_ns = began_ns
            span.fail(event.code)
            span.end()

    def loading(self, target: WeightsPublished) -> TraceSpan:
        """Returns the span of a load of weights, below the span of the publication."""
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
    """Returns the requests, each with a span below the open one; unchanged without an open span.

    Unless `every`, only requests whose ids are in the sampled fraction get a span.
    """
    parent = current()
    if parent is None:
        return requests
    tracer = parent.tracer
    return [
        msgspec.structs.replace(request, span=_begin_rollout(parent, request))
        if every or tracer.samples(root_of(request.id)[0])
        else request
        for request in requests
    ]


def _begin_rollout(parent: TraceSpan, request: RolloutRequest) -> TraceSpan:
    """Returns the span of a rollout, below the span of its lease."""
    attributes: dict[str, Attribute] = {**names.generative(names.ROLLOUT), names.ROLLOUT_NUMBER: request.number}
    attributes |= {
        key: parent.attributes[key] for key in (names.EXPERIMENT_ID, names.GROUP_ID) if key in parent.attributes
    }
    return parent.child(names.ROLLOUT, attributes={**attributes, names.ROLLOUT_ID: str(request.id)})


def end_rollout(outcome: RolloutOutcome) -> None:
    """Ends the span of a rollout, if there is one, with reward, finish, tokens and weights, or with the error."""
    span = outcome.request.span
    if span is None:
        return
    rollout = outcome.result
    if isinstance(rollout, RolloutResult):
        response = len(rollout.tokens) - rollout.prompt_tokens
        span.attributes |= {
            names.REWARD_VALUE: float(rollout.reward),
            names.FINISH: rollout.finish,
            names.GEN_AI_INPUT_TOKENS: rollout.prompt_tokens,
            names.GEN_AI_OUTPUT_TOKENS: response,
        }
        if rollout.spans:
            span.attributes[names.WEIGHT_VERSION] = rollout.spans[-1].version
    else:
        span.fail(rollout)
    span.end()


def end_cancelled(requests: Iterable[RolloutRequest]) -> None:
    """Ends the spans of rollouts without an outcome as cancelled."""
    for request in requests:
        if request.span is not None and not request.span.end_ns:
            request.span.fail(names.CANCELLED)
            request.span.end()


def created(outcome: RolloutOutcome, event: ExperienceProduced | RolloutFailed) -> str | None:
    """Returns the trace header for the event of a rollout, the last span of the trace; None outside the sample."""
    span = outcome.request.span
    if span is None:
        return None
    partition = partition_of(topics.EXPERIENCES, event.group).number
    attributes: dict[str, Attribute] = {**names.messaging("create", topics.EXPERIENCES, partition)}
    if isinstance(event, ExperienceProduced):
        attributes[names.EXPERIENCE_ID] = str(event.experience)
    producer = span.child(f"create {topics.EXPERIENCES}", SpanKind.PRODUCER, attributes=attributes)
    producer.end()
    return producer.context.traceparent
