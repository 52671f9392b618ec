"""`resumed_follower`: a follower continuing from the newest snapshot of the fold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from rftd.ops.clock import Clock
from rftd.ops.logs import Logger
from rftd.storage.files.snapshots import FOLDER, SnapshotFolder, believed
from rftd.streams.folds.run_state import SpineParts
from rftd.streams.folds.snapshot import Snapshot
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.follower import Fold, Follower
from rftd.streams.log.log import EventLog
from rftd.streams.log.start import ExperimentStart
from rftd.streams.log.topics import Partition
from rftd.streams.spec.spec import ExperimentSpec

P = TypeVar("P", bound=SpineParts)
"""Type of a snapshot's parts."""


def snapshots_of(spec: ExperimentSpec) -> SnapshotFolder:
    """Returns the folder of the daemon's snapshots of an experiment."""
    return SnapshotFolder(Path(spec.job_dir) / FOLDER)


async def resumed_follower(
    log: EventLog,
    fold: Fold,
    beginning: ExperimentStart,
    *,
    experiment: UUID,
    partitions: Iterable[Partition],
    adopt: Callable[[P], None],
    kind: type[Snapshot[P]],
    clock: Clock,
    logger: Logger,
    also: Mapping[Partition, int] | None = None,
    owner: bool = False,
) -> Follower:
    """Returns a follower of the partitions, starting at the newest snapshot, after passing the snapshot's parts to
    `adopt`.

    Without a usable snapshot the follower starts at the experiment's beginning; the `owner` of the snapshots discards
    unusable snapshots. `also` has the start offsets of followed partitions not covered by snapshots.
    """
    positions = {partition: beginning.positions.get(partition, 0) for partition in partitions}
    snapshot = await believed(
        log,
        snapshots_of(beginning.spec),
        kind,
        experiment=experiment,
        partitions=positions,
        logger=logger,
        discard=owner,
    )
    if snapshot is None:  # slow, never wrong: every snapshot is only a short cut through the log
        return Follower(log, fold, experiment=experiment, positions={**positions, **(also or {})}, clock=clock)
    adopt(snapshot.parts)
    # A partition followed by this release, but not by the snapshot's, starts at offset 0.
    snapshot_positions = snapshot.positions
    positions = {partition: snapshot_positions.get(partition, start) for partition, start in positions.items()}
    # Fences come with the snapshot: earlier fences are not read again.
    owners = [fence for fence in snapshot.fences if Partition(fence.stream, fence.partition) in positions]
    return Follower(
        log,
        fold,
        experiment=experiment,
        positions={**positions, **(also or {})},
        clock=clock,
        fences=FenceView(owners),
        heads=snapshot.heads(positions),
    )
