"""`RunState`: everything that decisions about one experiment rest on, as a fold of its events."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from rftd.streams import topics
from rftd.streams.codec import Decoded
from rftd.streams.events import step
from rftd.streams.events.checkpoint import CheckpointCommitted, CheckpointDeleted
from rftd.streams.events.worker import Heartbeat
from rftd.streams.folds.evals import Evals
from rftd.streams.folds.groups import Groups
from rftd.streams.folds.ledger import Ledger
from rftd.streams.folds.roster import Roster
from rftd.streams.folds.spine import Spine
from rftd.streams.folds.weights import Weights
from rftd.streams.topics import Partition, partition_of


class RunState:
    """The state of one experiment. The same for every interleaving of its partitions (rule 6)."""

    def __init__(self, experiment: UUID, *, on_heartbeat: Callable[[Heartbeat], None] | None = None) -> None:
        self.experiment = experiment
        self.spine = Spine()
        self.groups = Groups()
        self.ledger = Ledger()
        self.weights = Weights()
        self.evals = Evals()
        self.roster = Roster()
        self.checkpoints: dict[tuple[int, int], CheckpointCommitted] = {}
        """Committed and not deleted, by (step, generation)."""
        self._deleted: set[tuple[int, int]] = set()
        self._committed: set[UUID] = set()
        """Events that were taken in, so that an older one that comes again does not replace a newer."""
        self._on_heartbeat = on_heartbeat

    def apply(self, decoded: Decoded) -> None:
        """Takes in one effective event."""
        match decoded.partition.stream:
            case topics.EXPERIENCES:
                self.groups.apply(decoded)
                self.evals.apply(decoded)
            case topics.TASKS:
                self.groups.apply(decoded)
                self.ledger.apply(decoded)
                self.evals.apply(decoded)
            case topics.EXPERIMENTS:
                self.spine.apply(decoded)
                self.ledger.apply(decoded)
                self.evals.apply(decoded)
                if isinstance(decoded.event, step.StepCompleted):
                    self.ledger.forget(decoded.event.batch)
            case topics.WEIGHTS:
                self.weights.apply(decoded)
            case topics.CHECKPOINTS:
                self._checkpoint(decoded)
            case topics.WORKERS:
                if decoded.head.experiment == self.experiment:
                    self.roster.apply(decoded)
            case topics.HEARTBEATS:
                if self._on_heartbeat is not None and isinstance(decoded.event, Heartbeat):
                    self._on_heartbeat(decoded.event)

    def _checkpoint(self, decoded: Decoded) -> None:
        event = decoded.event
        if isinstance(event, CheckpointCommitted):
            if decoded.head.id in self._committed:
                return
            self._committed.add(decoded.head.id)
            if (event.step, event.generation) not in self._deleted:
                self.checkpoints[event.step, event.generation] = event
        elif isinstance(event, CheckpointDeleted):
            self._deleted.add((event.step, event.generation))
            self.checkpoints.pop((event.step, event.generation), None)


def partitions_of(experiment: UUID) -> tuple[Partition, ...]:
    """Every partition that may hold an event of the experiment."""
    keyed = {topics.EXPERIMENTS, topics.WEIGHTS, topics.CHECKPOINTS}
    return tuple(
        partition
        for partition in topics.EVERY_PARTITION
        if partition.stream != topics.DEADLETTERS
        and (partition.stream not in keyed or partition == partition_of(partition.stream, experiment))
    )
