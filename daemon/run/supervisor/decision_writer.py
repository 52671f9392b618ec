"""`DecisionWriter`: appends the decisions of an experiment's roles, and begins the traces starting with a decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias
from uuid import UUID

from rftd.daemon.run.supervisor.milestones import tell
from rftd.ops import faults
from rftd.ops.clock import Clock
from rftd.ops.logs import Logger
from rftd.ops.tracing import conventions as names
from rftd.ops.tracing.trace_context import TraceContext
from rftd.ops.tracing.tracer import Attribute, SpanKind, Tracer
from rftd.streams.events import experiment as life
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.registry import Event
from rftd.streams.events.task import EvalLeased, GroupClosed, TaskLeased
from rftd.streams.log import topics
from rftd.streams.log.decision import Decision, slot_partition
from rftd.streams.log.envelope import Draft
from rftd.streams.log.role import RoleLease
from rftd.streams.log.topics import Partition, partition_of

Roots: TypeAlias = Sequence[TraceContext | None]
"""Trace roots of a list of decisions, one each; None for a decision without a trace."""
Drafted: TypeAlias = tuple[Sequence[Draft], Roots]
"""Decisions as records, with their trace roots."""
_LIFE_SPANS: Final[dict[type[Event], str]] = {
    life.ExperimentPaused: names.PAUSE,
    life.ExperimentResumed: names.RESUME,
    life.ExperimentFailed: names.FAIL,
}
"""Span name of each life event that begins a trace."""


class DecisionTraces:
    """Derives traces from decisions (a lease, a batch), and records a span for each append of a sampled one."""

    def __init__(self, tracer: Tracer, experiment: UUID) -> None:
        """Records spans of one experiment's decisions with `tracer`."""
        self._tracer = tracer
        self._experiment = str(experiment)
        """Id of the experiment, as a span attribute."""
        self._spine = partition_of(topics.EXPERIMENTS, experiment)
        """Partition of the experiment's life events."""

    def roots(self, decisions: Sequence[Decision]) -> Roots:
        """Returns the root of the trace started by each decision, sampled or not; None for decisions that start none.

        The ids are derived from the decision: a daemon killed before the append decides again, and derives the same
        trace.
        """
        return [self._root(event) for event, _ in decisions]

    def sent(self, decisions: Sequence[Decision], roots: Roots, began_ns: int) -> None:
        """Records a span for each sampled decision, after all were appended; `began_ns` is the start of the append."""
        for (event, _), root in zip(decisions, roots, strict=True):
            if root is not None and root.sampled:
                self._record(event, root, began_ns)

    def _root(self, event: Event) -> TraceContext | None:
        """Returns the root of the trace started by this event; None if the event starts none."""
        match event:
            case TaskLeased() | EvalLeased():
                return self._tracer.root(event.lease, always=isinstance(event, EvalLeased))
            case BatchPlanned():
                return self._tracer.root(event.batch, always=True)
            case _ if type(event) in _LIFE_SPANS:
                return self._tracer.root(always=True)
            case _:
                return None

    def _record(self, event: Event, root: TraceContext, began_ns: int) -> None:
        """Records the span of one appended decision, begun at `began_ns`."""
        error = ""
        about: dict[str, Attribute] = {}
        match event:
            case TaskLeased() | EvalLeased():
                name = f"send {topics.TASKS}"
                partition = slot_partition(event.slot)
                about = _lease_attributes(event)
            case BatchPlanned():
                name = names.PLAN_BATCH
                partition = self._spine
                about = {names.BATCH_ID: str(event.batch), names.STEP: event.step, names.STAGE: event.stage}
                about[names.ITEMS] = len(event.experiences) + len(event.rows)
            case _:
                name = _LIFE_SPANS[type(event)]
                partition = self._spine
                if isinstance(event, life.ExperimentPaused):
                    about = {names.CAUSE: event.cause}
                elif isinstance(event, life.ExperimentFailed):
                    error = event.code
        self._tracer.record(
            name,
            root,
            SpanKind.PRODUCER,
            start_ns=began_ns,
            attributes={**self._destination(partition), **about},
            error=error,
        )

    def _destination(self, partition: Partition) -> dict[str, Attribute]:
        """Returns the span attributes naming partition and experiment."""
        return {**names.messaging("send", partition.stream, partition.number), names.EXPERIMENT_ID: self._experiment}


def _lease_attributes(event: TaskLeased | EvalLeased) -> dict[str, Attribute]:
    """Returns the span attributes of a lease: its id, stage, attempt, and the size of its work."""
    about: dict[str, Attribute] = {
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


class DecisionWriter:
    """Appends the decisions on one experiment; `appending_s` shows how long the current append has lasted."""

    def __init__(
        self, experiment: UUID, *, clock: Clock, wall: Clock, logger: Logger, tracer: Tracer | None = None
    ) -> None:
        """`clock` is the experiment's own clock, for event times; `wall` is the machine's, for spans."""
        self.appending_s = 0.0
        """Monotonic time at which the current append started; 0 between appends."""
        self._experiment = experiment
        self._spine = partition_of(topics.EXPERIMENTS, experiment)
        """Partition of most decisions: the experiment's life events."""
        self._closed_groups = partition_of(topics.TASKS, experiment)
        """Partition of `group.closed`."""
        self._clock = clock
        self._wall = wall
        self._logger = logger
        self._traces = None if tracer is None else DecisionTraces(tracer, experiment)
        """Recorder of spans; None without tracing."""

    async def write(
        self, lease: RoleLease, role: str, decided: Sequence[Decision], drafted: Drafted | None = None
    ) -> None:
        """Appends a role's decisions under its lease, folds them, and records their spans; does nothing without
        decisions. `drafted` has the decisions' records if built before; None: they are built here.
        """
        if not decided:
            return
        drafts, roots = drafted or self.drafted(lease, decided)
        faults.point(f"{role}.before_append")
        self.appending_s = self._clock.monotonic_s()
        began_ns = self._wall.now_ns()
        await lease.append(drafts)
        self.appending_s = 0.0
        if self._traces is not None:
            self._traces.sent(decided, roots, began_ns)
        faults.point(f"{role}.after_append")
        tell(self._logger, self._experiment, (event for event, _ in decided))

    def drafted(self, lease: RoleLease, decisions: Sequence[Decision]) -> Drafted:
        """Returns the events as records, and the traces beginning with them."""
        roots = self._traces.roots(decisions) if self._traces is not None else [None] * len(decisions)
        return [
            lease.writer.draft(
                event,
                experiment=self._experiment,
                partition=partition or self._home(event),
                traceparent=root and root.traceparent,
            )
            for (event, partition), root in zip(decisions, roots, strict=True)
        ], roots

    def _home(self, event: Event) -> Partition:
        """Returns the default partition of a decision: a group's closing goes to the tasks, others to the spine."""
        return self._closed_groups if isinstance(event, GroupClosed) else self._spine
