"""`resumed_follower`: a follower that goes on from the newest snapshot of its fold."""

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


def snapshots_of(spec: ExperimentSpec) -> SnapshotFolder:
    """The folder in which the daemon keeps the folds of an experiment."""
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
    """A follower of the partitions that begins where the newest snapshot ends, whose parts `adopt` was given.

    It begins at the experiment's beginning if no snapshot can be believed; the `owner` of the snapshots discards those
    that cannot. `also` has the offsets from which partitions are followed that no snapshot covers.
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
    # A partition that this release follows and the one that wrote the snapshot did not begins at the beginning.
    found = snapshot.positions
    positions = {partition: found.get(partition, start) for partition, start in positions.items()}
    # Fences come with the parts: a role's owner who fenced below these positions is not read again.
    owners = [each for each in snapshot.fences if Partition(each.stream, each.partition) in positions]
    return Follower(
        log,
        fold,
        experiment=experiment,
        positions={**positions, **(also or {})},
        clock=clock,
        fences=FenceView(owners),
        heads=snapshot.heads(positions),
    )
