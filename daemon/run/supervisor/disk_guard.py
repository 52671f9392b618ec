"""`DiskGuard`: says when experiments have to pause for want of space, before a write fails, and when they may go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from rftd.daemon.cli.output.quantity import size
from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.logs import Logger
from rftd.ops.metrics import Metrics
from rftd.storage.files.disk import Disk, Volume
from rftd.workers.control.obstacle import DISK_BUDGET, DISK_FULL, Obstacle

T = TypeVar("T")

# One statvfs for each volume and look; the reserve has to last for what all workers write between two of them.
LOOK_S: Final = 1.0
LOOK_TIMEOUT_S: Final = 10.0
"""A file system that does not answer for so long is asked again later; until then what was known counts."""
COUNT_TIMEOUT_S: Final = 300.0
COUNT_SHARE: Final = 20
"""Counting a folder's files takes at most one part in this many of the time between two counts."""
COLLECT_S: Final = 600.0
"""The time between two attempts to make room: each lists the folders of every experiment that ended."""
COLLECT_TIMEOUT_S: Final = 30.0
"""The longest attempt: the experiments under way go on writing meanwhile, and wait for the verdict after it."""


class DiskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The space that the daemon may take."""

    reserve_bytes: int | None = None
    """The bytes that stay free on each volume; None: 5 % of it, but no more than `limits.DISK_RESERVE_SIZE_BYTES`."""
    budget_bytes: int | None = None
    """The most that the data folder and the experiments' folders take together; None: as much as there is."""

    def reserve_of(self, volume: Volume) -> int:
        """Bytes that stay free on this volume."""
        if self.reserve_bytes is not None:
            return self.reserve_bytes
        return min(limits.DISK_RESERVE_SIZE_BYTES, volume.size_bytes // 20)


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement of the volumes, with the bytes that are about to be written."""

    volumes: dict[str, Volume]
    """The volumes, each under one folder that lies on it."""
    used_bytes: int
    """The bytes of everything that the budget covers; 0 if there is none."""
    need_bytes: int
    """The size of the next checkpoints and weights of all that is under way, as far as it is known."""


def judge(reading: Reading, allowed: DiskLimits, *, short: bool) -> Obstacle | None:
    """The shortage, if there is one; None if there is room. Pure.

    Once it was `short`, a little more than the bare limit has to be free.
    """
    for folder, volume in reading.volumes.items():
        reserve_bytes = allowed.reserve_of(volume)
        # Hysteresis: at the bare limit a run would pause and resume with each small file that comes and goes, and
        # each pause costs the rollouts under way.
        wanted_bytes = reserve_bytes + reading.need_bytes + (reserve_bytes // 4 if short else 0)
        if reserve_bytes and volume.free_bytes < wanted_bytes:
            return Obstacle(
                cause=DISK_FULL,
                reason=f"{size(volume.free_bytes)} are free on the volume of {folder}; {size(reserve_bytes)} stay free"
                f"{_need(reading)}",
                fix=f"free {size(wanted_bytes - volume.free_bytes)} there, with rftd gc, rm or archive --to, or serve "
                "with a smaller --disk-reserve; it goes on by itself",
            )
    budget_bytes = allowed.budget_bytes
    if budget_bytes is None:
        return None
    wanted_bytes = reading.used_bytes + reading.need_bytes + (budget_bytes // 20 if short else 0)
    if wanted_bytes <= budget_bytes:
        return None
    return Obstacle(
        cause=DISK_BUDGET,
        reason=f"{size(reading.used_bytes)} of the budget of {size(budget_bytes)} are used{_need(reading)}",
        fix=f"remove {size(wanted_bytes - budget_bytes)}, with rftd gc, rm or archive --to, or serve with a larger "
        "--disk-budget; it goes on by itself",
    )


def _need(reading: Reading) -> str:
    return f", and the next checkpoint takes {size(reading.need_bytes)}" if reading.need_bytes else ""


class DiskGuard:
    """Measures while the daemon runs. `shortage` is the last verdict; what can be collected was collected before it."""

    def __init__(
        self,
        disk: Disk,
        data: Path,
        allowed: DiskLimits,
        *,
        clock: Clock,
        logger: Logger,
        metrics: Metrics | None = None,
    ) -> None:
        """`data` is the data folder."""
        self.shortage: Obstacle | None = None
        self.collect: Callable[[], Awaitable[None]] | None = None
        """Makes room if it can; the supervisor sets it."""
        self.folders: Callable[[], Sequence[Path]] = tuple
        """The folders of the experiments whose files are here; the supervisor sets it."""
        self._disk = disk
        self._data = data
        self._allowed = allowed
        self._clock = clock
        self._logger = logger
        self._metrics = metrics
        self._jobs: dict[Path, Callable[[], int]] = {}
        self._used_bytes = 0
        self._count_at_s = 0.0
        self._collect_at_s = 0.0
        self._looking = asyncio.Lock()
        self._measuring: dict[str, asyncio.Future[Any]] = {}
        """Measurements in a thread, by what they measure; one whose file system hangs stays here."""

    async def attend(self, job: Path, need: Callable[[], int]) -> None:
        """Notes that the experiment in folder `job` is under way; `need` says how many bytes it is about to write."""
        self._jobs[job] = need
        self._count_at_s = 0.0
        await self.look()

    def leave(self, job: Path) -> None:
        """The experiment in that folder is not under way any more."""
        self._jobs.pop(job, None)

    async def run(self) -> None:
        """Looks again and again until cancelled."""
        while True:
            # Judged before the run's first worker starts, so that an experiment which does not fit pauses instead of
            # failing a write.
            await self.look()
            await self._clock.sleep(LOOK_S)

    async def look(self) -> None:
        """Measures, makes room if there is too little, and measures again. While a disk is silent nothing changes."""
        # The loop and a run that begins may look at once: two counts of a million files beside each other take twice
        # as long.
        async with self._looking:
            try:
                found = await self._judged()
                if found is not None and self.collect is not None and self._clock.monotonic_s() >= self._collect_at_s:
                    # Set before the attempt: one that fails or hangs is not repeated with every look.
                    self._collect_at_s = self._clock.monotonic_s() + COLLECT_S
                    with suppress(TimeoutError):
                        async with asyncio.timeout(COLLECT_TIMEOUT_S):
                            await self.collect()
                    self._count_at_s = 0.0
                    found = await self._judged()
            except (OSError, TimeoutError) as error:
                self._logger.warning(
                    "disk.silent",
                    path=", ".join(map(str, self._jobs or (self._data,))),
                    reason=str(error) or "no answer",
                )
                return
            self._tell(found)

    async def _judged(self) -> Obstacle | None:
        volumes = {}
        for folder in (self._data, *self._jobs):
            volumes[str(folder)] = await self._measured(str(folder), partial(self._disk.volume, folder), LOOK_TIMEOUT_S)
        began_s = self._clock.monotonic_s()
        if self._allowed.budget_bytes is not None and began_s >= self._count_at_s:
            count = partial(self._disk.used_bytes, self._counted())
            self._used_bytes = await self._measured("", count, COUNT_TIMEOUT_S)
            now_s = self._clock.monotonic_s()
            # As a share of what counting took: a fixed interval would be too long for a small folder and leave no
            # disk bandwidth for a large one.
            self._count_at_s = now_s + COUNT_SHARE * (now_s - began_s)
        if self._metrics is not None:
            self._metrics.disk_free.set(min(volume.free_bytes for volume in volumes.values()))
            self._metrics.disk_used.set(self._used_bytes)
        need_bytes = sum(need() for need in self._jobs.values())
        reading = Reading(volumes=volumes, used_bytes=self._used_bytes, need_bytes=need_bytes)
        return judge(reading, self._allowed, short=self.shortage is not None)

    async def _measured(self, what: str, measure: Callable[[], T], timeout_s: float) -> T:
        """The result of `measure`, from a thread. Raises TimeoutError; the next call then waits for the same one."""
        # A thread in a system call on a file system that hangs cannot be cancelled: a time-out ends the waiting only.
        # One more thread with every look would use up the loop's pool, on which requests and snapshots depend too.
        running = self._measuring.get(what)
        if running is None:
            running = self._measuring[what] = asyncio.ensure_future(asyncio.to_thread(measure))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(running)
        finally:
            if running.done():
                self._measuring.pop(what, None)

    def _counted(self) -> list[Path]:
        """The data folder, and the experiments' folders that are not below it: those below are counted with it."""
        data = self._data.absolute()
        others = {folder.absolute() for folder in self.folders()}
        return [data, *sorted(folder for folder in others if not folder.is_relative_to(data))]

    def _tell(self, found: Obstacle | None) -> None:
        before = self.shortage
        self.shortage = found
        if self._metrics is not None:
            for cause in (DISK_FULL, DISK_BUDGET):
                self._metrics.disk_short.labels(cause).set(float(found is not None and found.cause == cause))
        if found is not None and before is None:
            self._logger.warning("disk.short", cause=found.cause, reason=found.reason, fix=found.fix)
        elif found is None and before is not None:
            self._logger.info("disk.room_again", cause=before.cause)
