"""`Snapshotter`: keeps a recent fold of the run under way in a file, so that nobody has to fold from the beginning."""

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
"""Writing snapshots takes at most one part in this many of the time between two of them."""


class Snapshotter:
    """Looks after each turn of the run. What cannot be written is told and tried again later: it is a cache."""

    def __init__(
        self, state: RunState, follower: Follower, folder: SnapshotFolder, *, clock: Clock, logger: Logger
    ) -> None:
        self._state = state
        self._follower = follower
        self._folder = folder
        self._clock = clock
        self._logger = logger
        self._memory = JobMemory(folder.folder, follower, clock)
        self._records = 0
        """The records that had been folded when the newest snapshot was taken, since this process began."""
        self._checkpoints = state.committed.count
        self._not_before_s = 0.0

    async def look(self) -> None:
        """Takes a snapshot if a checkpoint was committed, or many records were folded, since the last one.

        Where the log stands is remembered beside them, more often.
        """
        await self._memory.look()
        began_s = self._clock.monotonic_s()
        if began_s < self._not_before_s:
            return
        due = self._state.committed.count > self._checkpoints
        if due or self._follower.folded - self._records >= limits.SNAPSHOT_RECORDS:
            await self.take()
            spent_s = self._clock.monotonic_s() - began_s
            # By what the last one took: the fold of a long run takes longer to write, and must not slow its run down
            # more for that.
            self._not_before_s = began_s + max(limits.SNAPSHOT_INTERVAL_S, _SHARE * spent_s)

    async def end(self, *, take: bool) -> None:
        """Remembers for the last time where the log stands, and takes a last snapshot, if somebody will need it."""
        await self._memory.remember()
        self._memory.close()
        if take:
            await self.take()

    async def take(self) -> None:
        """Takes one now, unless nothing was folded since the last."""
        if self._follower.folded == self._records:
            return
        self._records = self._follower.folded
        self._checkpoints = self._state.committed.count
        async with self._follower.still():  # off the loop: others of this process go on meanwhile
            marks = self._follower.marks()
            snapshot = Snapshot(
                experiment=self._state.experiment,
                marks=marks,
                fences=self._follower.fences.owners(),
                parts=self._state.parts(),
            )
            data = await asyncio.to_thread(pack, snapshot)
        try:
            await asyncio.to_thread(self._folder.write, data, sum(mark.next_offset for mark in marks))
        # Counted as taken although it was not written: a full disk would else cost a whole fold in memory with every
        # turn.
        except OSError as error:
            self._logger.warning("snapshot.failed", path=str(self._folder.folder), reason=str(error))
