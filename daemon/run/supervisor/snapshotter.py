"""`Snapshotter`: writes the folded state of a run to a file now and then, so that a restart need not fold the whole
log.
"""

from __future__ import annotations

import asyncio
from typing import Final

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.logs import Logger
from rftd.storage.files.snapshots import SnapshotFolder
from rftd.storage.files.survivors import JobMemory
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.snapshot import Snapshot, pack
from rftd.streams.log.follower import Follower

_SHARE: Final = 20
"""Writing snapshots takes at most 1/20 of the time between two of them."""


class Snapshotter:
    """Writes snapshots of a run when due, after its turns; a failed write is retried later, since a snapshot is only a
    cache.
    """

    def __init__(
        self, state: RunState, follower: Follower, folder: SnapshotFolder, *, clock: Clock, logger: Logger
    ) -> None:
        """Snapshots of `state`, at the positions of `follower`, go to `folder`."""
        self._state = state
        self._follower = follower
        self._folder = folder
        self._clock = clock
        self._logger = logger
        self._memory = JobMemory(folder.folder, follower, clock)
        """File of the log's heads in the experiment's folder, for the loss check."""
        self._records = 0
        """Number of records folded by this process up to its newest snapshot."""
        self._checkpoints = state.committed.count
        """Number of committed checkpoints at the newest snapshot."""
        self._not_before_s = 0.0
        """Earliest monotonic time of the next snapshot."""

    async def look(self) -> None:
        """Writes a snapshot if a checkpoint was committed or many records were folded since the last one.

        The heads of the log are written beside the snapshots more often, for the loss check.
        """
        await self._memory.look()
        began_s = self._clock.monotonic_s()
        if began_s < self._not_before_s:
            return
        due = self._state.committed.count > self._checkpoints
        if due or self._follower.folded - self._records >= limits.SNAPSHOT_RECORDS:
            await self.take()
            spent_s = self._clock.monotonic_s() - began_s
            # In proportion to the last snapshot's duration: the fold of a long run takes longer to write, and must not
            # slow its run down further.
            self._not_before_s = began_s + max(limits.SNAPSHOT_INTERVAL_S, _SHARE * spent_s)

    async def end(self, *, take: bool) -> None:
        """Writes the heads of the log a last time, and, if `take`, a last snapshot."""
        await self._memory.remember()
        self._memory.close()
        if take:
            await self.take()

    async def take(self) -> None:
        """Writes a snapshot now, unless no record was folded since the last one."""
        if self._follower.folded == self._records:
            return
        self._records = self._follower.folded
        self._checkpoints = self._state.committed.count
        async with self._follower.still():  # off the loop: other tasks of this process continue meanwhile
            marks = self._follower.marks()
            snapshot = Snapshot(
                experiment=self._state.experiment,
                marks=marks,
                fences=self._follower.fences.owners(),
                parts=self._state.parts(),
            )
            packed = await asyncio.to_thread(pack, snapshot)
        try:
            await asyncio.to_thread(self._folder.write, packed, sum(mark.next_offset for mark in marks))
        # Counted as taken although not written: otherwise a full disk would cost a whole fold in memory with every
        # turn.
        except OSError as error:
            self._logger.warning("snapshot.failed", path=str(self._folder.folder), reason=str(error))
