"""`RunState`: the basis of all decisions about one experiment, as a fold of its events."""

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
    """The announced checkpoints; their users check that the step is on the spine (rule 3)."""

    kept: dict[tuple[int, int], CheckpointCommitted] = {}
    """Committed and not deleted, by (step, generation); the last committed is the last."""
    _deleted: set[tuple[int, int]] = set()
    count: int = 0
    """Number of checkpoints ever committed, each counted once."""
    _committed: dict[tuple[int, int], set[UUID]] = {}
    """Event ids of the kept ones: a repeated older event must not replace a newer one."""

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
    weights: Weights
    committed: KeptCheckpoints


class RunParts(SpineParts, kw_only=True):
    """All folds of one experiment, as stored in the snapshots of a daemon."""

    groups: GroupFold
    replay_buffer: ReplayBuffer
    evals: EvalFold
    roster: Roster


class RunState:
    """The state of one experiment. Equal for every interleaving of its partitions (rule 6)."""

    def __init__(
        self,
        experiment: UUID,
        *,
        on_sign_of_life: Callable[[Heartbeat | WorkerStarted], None] | None = None,
        spine_only: bool = False,
    ) -> None:
        """Creates an empty state; `on_sign_of_life` is called with every heartbeat and every joining worker.

        `spine_only` is for followers of spine, weights and checkpoints: books without a chance to balance are not kept.
        """
        self.experiment = experiment
        self.spine = Spine()
        self.groups = GroupFold()
        self.replay_buffer = ReplayBuffer()
        self.weights = Weights()
        self.evals = EvalFold()
        self.roster = Roster()
        self.committed = KeptCheckpoints()
        self.touched: dict[UUID, BufferEntry | None] | None = None
        """Experiences changed in the replay buffer, in their present state, for an index; None without an index."""
        self.evaluated_through: dict[int, int] = {}
        """The step of each stage with no due evaluation up to it, for skipping a second check."""
        self._on_sign_of_life = on_sign_of_life
        self._spine_only = spine_only

    @property
    def checkpoints(self) -> dict[tuple[int, int], CheckpointCommitted]:
        """Committed and not deleted, by (step, generation)."""
        return self.committed.kept

    def adopt(self, parts: SpineParts) -> None:
        """Sets the folds to a snapshot's; the state must be new."""
        self.spine = parts.spine
        self.weights = parts.weights
        self.committed = parts.committed
        if isinstance(parts, RunParts):
            self.groups = parts.groups
            self.replay_buffer = parts.replay_buffer
            self.evals = parts.evals
            self.roster = parts.roster

    def parts(self) -> RunParts:
        """Returns all folds, for a snapshot: not a copy, so encode it while nothing is folded."""
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
        """Folds one effective event of any stream, passing the event to the folds concerned."""
        match decoded.partition.stream:
            # Explorers write scores of evaluations to the stream of experiences.
            case topics.EXPERIENCES:
                (self.evals if isinstance(decoded.event, EvalScored) else self.groups).apply(decoded)
            case topics.TASKS:
                self.groups.apply(decoded)
                self._keep_books(decoded)
                self.evals.apply(decoded)
            case topics.EXPERIMENTS:
                self.spine.apply(decoded)
                # Plans and retirements name groups never read by such a state: notes ahead of them would only grow.
                if self._spine_only:
                    return
                self.groups.apply(decoded)
                self.replay_buffer.begin(self.spine.batches.before)
                self._keep_books(decoded)
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

    def _keep_books(self, decoded: Decoded) -> None:
        changed = self.replay_buffer.apply(decoded)
        if self.touched is not None:
            self.touched.update(changed)


def partitions_of(experiment: UUID) -> tuple[Partition, ...]:
    """Returns every partition possibly holding an event of the experiment."""
    return tuple(
        partition
        for partition in topics.EVERY_PARTITION
        if partition.stream != topics.DEADLETTERS and may_hold(partition, experiment)
    )
