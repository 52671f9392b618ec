"""`RunState`: everything known about one experiment, as a fold of its events; the basis of all decisions."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import msgspec

from rftd.streams.events.checkpoint import CheckpointCommitted, CheckpointDeleted
from rftd.streams.events.experience import EvalScored
from rftd.streams.events.worker import Heartbeat, WorkerStarted
from rftd.streams.folds.evals import EvalFold
from rftd.streams.folds.groups import GroupFold
from rftd.streams.folds.replay_buffer import BufferEntry, ReplayBuffer
from rftd.streams.folds.roster import Roster
from rftd.streams.folds.spine import Spine
from rftd.streams.folds.weights import Weights
from rftd.streams.log import topics
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.topics import Partition, may_hold


class KeptCheckpoints(msgspec.Struct):
    """Checkpoints committed and not deleted; users still have to check that the step is on the spine."""

    kept: dict[tuple[int, int], CheckpointCommitted] = {}
    """Events by (step, generation), in the order of commits."""
    _deleted: set[tuple[int, int]] = set()
    """Deleted (step, generation)."""
    count: int = 0
    """Number of checkpoints ever committed, each counted once."""
    _committed: dict[tuple[int, int], set[UUID]] = {}
    """Event ids of each kept checkpoint, so that a repeated older event does not replace a newer one."""

    def apply(self, decoded: Decoded) -> None:
        """Folds checkpoint.committed and checkpoint.deleted; a repeated event changes nothing."""
        event = decoded.event
        if isinstance(event, CheckpointCommitted):
            key = event.step, event.generation
            committed_events = self._committed.get(key, ())
            if key not in self._deleted and decoded.head.id not in committed_events:
                self.count += 1
                self._committed[key] = {decoded.head.id, *committed_events}
                self.kept[key] = event
        elif isinstance(event, CheckpointDeleted):
            key = event.step, event.generation
            self._deleted.add(key)
            self._committed.pop(key, None)
            self.kept.pop(key, None)


class SpineParts(msgspec.Struct, kw_only=True):
    """The folds of three partitions: the part of a snapshot used by trainer and explorers."""

    spine: Spine
    """Fold of the spine."""
    weights: Weights
    """Fold of announced weights."""
    committed: KeptCheckpoints
    """Fold of checkpoints."""


class RunParts(SpineParts, kw_only=True):
    """All folds of one experiment, as written in a daemon's snapshots."""

    groups: GroupFold
    """Fold of open groups."""
    replay_buffer: ReplayBuffer
    """Fold of waiting experiences."""
    evals: EvalFold
    """Fold of evaluations."""
    roster: Roster
    """Fold of workers."""


class RunState:
    """The folded state of one experiment, equal for every order of reading its partitions."""

    def __init__(
        self,
        experiment: UUID,
        *,
        on_sign_of_life: Callable[[Heartbeat | WorkerStarted], None] | None = None,
        spine_only: bool = False,
    ) -> None:
        """Creates an empty state; `on_sign_of_life` is called with every heartbeat and every worker.started.

        `spine_only` is for readers of spine, weights and checkpoints alone: the replay buffer, which could not balance,
        is not folded.
        """
        self.experiment = experiment
        self.spine = Spine()
        """Fold of the spine."""
        self.groups = GroupFold()
        """Fold of open groups."""
        self.replay_buffer = ReplayBuffer()
        """Fold of waiting experiences."""
        self.weights = Weights()
        """Fold of announced weights."""
        self.evals = EvalFold()
        """Fold of evaluations."""
        self.roster = Roster()
        """Fold of workers."""
        self.committed = KeptCheckpoints()
        """Fold of checkpoints."""
        self.touched: dict[UUID, BufferEntry | None] | None = None
        """Experiences changed in the replay buffer since the index last read them, with their present entries; None
        without an index.
        """
        self.evaluated_through: dict[int, int] = {}
        """Step of each stage up to which no evaluation is due, so that it need not be checked again."""
        self._on_sign_of_life = on_sign_of_life
        self._spine_only = spine_only

    @property
    def checkpoints(self) -> dict[tuple[int, int], CheckpointCommitted]:
        """Checkpoints committed and not deleted, by (step, generation)."""
        return self.committed.kept

    def adopt(self, parts: SpineParts) -> None:
        """Starts from a snapshot's folds; only on a new state."""
        self.spine = parts.spine
        self.weights = parts.weights
        self.committed = parts.committed
        if isinstance(parts, RunParts):
            self.groups = parts.groups
            self.replay_buffer = parts.replay_buffer
            self.evals = parts.evals
            self.roster = parts.roster

    def parts(self) -> RunParts:
        """Returns all folds, for a snapshot. Not a copy: to be encoded before the next event is folded."""
        return RunParts(
            spine=self.spine,
            weights=self.weights,
            committed=self.committed,
            groups=self.groups,
            replay_buffer=self.replay_buffer,
            evals=self.evals,
            roster=self.roster,
        )

    def apply(self, decoded: Decoded) -> None:
        """Folds one effective event of any stream into the folds concerned."""
        match decoded.partition.stream:
            # Explorers write scores of evaluations to the stream of experiences.
            case topics.EXPERIENCES:
                (self.evals if isinstance(decoded.event, EvalScored) else self.groups).apply(decoded)
            case topics.TASKS:
                self.groups.apply(decoded)
                self._fold_into_buffer(decoded)
                self.evals.apply(decoded)
            case topics.EXPERIMENTS:
                self.spine.apply(decoded)
                # Plans and retirements name groups never read by such a state: notes ahead of them would only grow.
                if self._spine_only:
                    return
                self.groups.apply(decoded)
                self.replay_buffer.begin(self.spine.batches.before)
                self._fold_into_buffer(decoded)
                self.evals.apply(decoded)
            case topics.WEIGHTS:
                self.weights.apply(decoded)
            case topics.CHECKPOINTS:
                self.committed.apply(decoded)
            case topics.WORKERS:
                # A follower also delivers records without an experiment: here, of standby workers.
                if decoded.head.experiment == self.experiment:
                    self.roster.apply(decoded)
                    if self._on_sign_of_life is not None and isinstance(decoded.event, WorkerStarted):
                        self._on_sign_of_life(decoded.event)
            case topics.HEARTBEATS:
                if self._on_sign_of_life is not None and isinstance(decoded.event, Heartbeat):
                    self._on_sign_of_life(decoded.event)

    def _fold_into_buffer(self, decoded: Decoded) -> None:
        """Folds an event into the replay buffer, and records the changed experiences."""
        changed = self.replay_buffer.apply(decoded)
        if self.touched is not None:
            self.touched.update(changed)


def partitions_of(experiment: UUID) -> tuple[Partition, ...]:
    """Returns every partition that may hold events of the experiment."""
    return tuple(
        partition
        for partition in topics.EVERY_PARTITION
        if partition.stream != topics.DEADLETTERS and may_hold(partition, experiment)
    )
