"""`RunState`: everything that decisions about one experiment rest on, as a fold of its events."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import msgspec

from rftd.streams import topics
from rftd.streams.codec import Decoded
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.experience import EvalScored
from rftd.streams.events.worker import Heartbeat
from rftd.streams.folds.checkpoints import Checkpoints
from rftd.streams.folds.evals import Evals
from rftd.streams.folds.groups import Groups
from rftd.streams.folds.ledger import Ledger, Waiting
from rftd.streams.folds.roster import Roster
from rftd.streams.folds.spine import Spine
from rftd.streams.folds.weights import Weights
from rftd.streams.topics import Partition, partition_of


class SpineParts(msgspec.Struct, kw_only=True):
    """What three partitions say: the part of a snapshot that trainer and explorers take."""

    spine: Spine
    weights: Weights
    committed: Checkpoints


class RunParts(SpineParts, kw_only=True):
    """All folds of one experiment."""

    groups: Groups
    ledger: Ledger
    evals: Evals
    roster: Roster


class RunState:
    """The state of one experiment. The same for every interleaving of its partitions (rule 6)."""

    def __init__(
        self,
        experiment: UUID,
        *,
        on_heartbeat: Callable[[Heartbeat], None] | None = None,
        spine_only: bool = False,
    ) -> None:
        """`spine_only`: for who follows spine, weights and checkpoints; books that could not balance are not kept."""
        self.experiment = experiment
        self.spine = Spine()
        self.groups = Groups()
        self.ledger = Ledger()
        self.weights = Weights()
        self.evals = Evals()
        self.roster = Roster()
        self.committed = Checkpoints()
        self.touched: dict[UUID, Waiting | None] | None = None
        """What the ledger changed, as it is now, for an index that follows it; None if there is none."""
        self.evaluated_through: dict[int, int] = {}
        """Per stage: no evaluation up to this step is due any more. Noted by who looked, so that nobody looks twice."""
        self._on_heartbeat = on_heartbeat
        self._spine_only = spine_only

    @property
    def checkpoints(self) -> dict[tuple[int, int], CheckpointCommitted]:
        """Committed and not deleted, by (step, generation)."""
        return self.committed.kept

    def adopt(self, parts: SpineParts) -> None:
        """Takes over what a snapshot holds; the state must be new."""
        self.spine, self.weights, self.committed = parts.spine, parts.weights, parts.committed
        if isinstance(parts, RunParts):
            self.groups, self.ledger, self.evals, self.roster = parts.groups, parts.ledger, parts.evals, parts.roster

    def parts(self) -> RunParts:
        """All of it, for a snapshot: not a copy, so encode it while nothing is folded."""
        return RunParts(
            spine=self.spine,
            weights=self.weights,
            committed=self.committed,
            groups=self.groups,
            ledger=self.ledger,
            evals=self.evals,
            roster=self.roster,
        )

    def apply(self, decoded: Decoded) -> None:
        """Takes in one effective event."""
        match decoded.partition.stream:
            case topics.EXPERIENCES:
                (self.evals if isinstance(decoded.event, EvalScored) else self.groups).apply(decoded)
            case topics.TASKS:
                self.groups.apply(decoded)
                self._keep_books(decoded)
                self.evals.apply(decoded)
            case topics.EXPERIMENTS:
                self.spine.apply(decoded)
                if self._spine_only:
                    return
                self.groups.apply(decoded)
                self._keep_books(decoded)
                self.evals.apply(decoded)
            case topics.WEIGHTS:
                self.weights.apply(decoded)
            case topics.CHECKPOINTS:
                self.committed.apply(decoded)
            case topics.WORKERS:
                if decoded.head.experiment == self.experiment:
                    self.roster.apply(decoded)
            case topics.HEARTBEATS:
                if self._on_heartbeat is not None and isinstance(decoded.event, Heartbeat):
                    self._on_heartbeat(decoded.event)

    def _keep_books(self, decoded: Decoded) -> None:
        changed = self.ledger.apply(decoded)
        if self.touched is not None:
            self.touched.update(changed)


def partitions_of(experiment: UUID) -> tuple[Partition, ...]:
    """Every partition that may hold an event of the experiment."""
    keyed = {topics.EXPERIMENTS, topics.WEIGHTS, topics.CHECKPOINTS}
    return tuple(
        partition
        for partition in topics.EVERY_PARTITION
        if partition.stream != topics.DEADLETTERS
        and (partition.stream not in keyed or partition == partition_of(partition.stream, experiment))
    )
