"""`DecisionWriter`: appends the decisions of an experiment's roles, each under the lease of its role."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from rftd.daemon.supervisor.decision_traces import DecisionTraces, Drafted
from rftd.daemon.supervisor.milestones import tell
from rftd.ops import faults
from rftd.ops.clock import Clock
from rftd.ops.logs import Logger
from rftd.ops.tracing.tracer import Tracer
from rftd.streams import topics
from rftd.streams.decision import Decision
from rftd.streams.events.registry import Event
from rftd.streams.events.task import GroupClosed
from rftd.streams.role import RoleLease
from rftd.streams.topics import Partition, partition_of


class DecisionWriter:
    """Writes what was decided on one experiment, and says how long the append under way has taken."""

    def __init__(
        self, experiment: UUID, *, clock: Clock, wall: Clock, logger: Logger, tracer: Tracer | None = None
    ) -> None:
        """`clock` is the experiment's own, `wall` the machine's, which traces go by."""
        self.appending_s = 0.0
        """The monotonic time at which the append under way began; 0 if there is none."""
        self._experiment = experiment
        self._spine = partition_of(topics.EXPERIMENTS, experiment)
        self._closed_groups = partition_of(topics.TASKS, experiment)
        self._clock = clock
        self._wall = wall
        self._logger = logger
        self._traces = None if tracer is None else DecisionTraces(tracer, experiment)

    async def write(
        self, lease: RoleLease, role: str, decided: Sequence[Decision], drafted: Drafted | None = None
    ) -> None:
        """Writes what was decided, and folds it."""
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
        """The events as records, and the traces that begin with them."""
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
        return self._closed_groups if isinstance(event, GroupClosed) else self._spine
