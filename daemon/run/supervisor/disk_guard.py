"""`DiskGuard`: measures free disk space, and reports a shortage before a write fails, so that experiments pause in
time.
"""

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
from rftd.workers.control.hold import DISK_BUDGET, DISK_FULL, Obstacle

T = TypeVar("T")
"""Type returned by a measurement."""

# One statvfs per volume and look; the reserve has to last for everything written by all workers between two looks.
POLL_INTERVAL_S: Final = 1.0
"""Seconds between two measurements of free space."""
MEASURE_TIMEOUT_S: Final = 10.0
"""Maximum seconds for one measurement of a file system; after that, the previous measurement is used."""
COUNT_TIMEOUT_S: Final = 300.0
"""Maximum seconds for counting the bytes of all files."""
COUNT_SHARE: Final = 20
"""Divisor of the time between two counts of a folder's files: one count takes at most a twentieth of that time."""
COLLECT_S: Final = 600.0
"""Seconds between two attempts to free space: each attempt lists the folders of every ended experiment."""
COLLECT_TIMEOUT_S: Final = 30.0
"""Maximum seconds of one attempt to free space; running experiments keep writing until the verdict after
the attempt.
"""


class DiskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the disk space used by the daemon."""

    reserve_bytes: int | None = None
    """Bytes to keep free on each volume; None: 5 % of the volume, at most `limits.DISK_RESERVE_SIZE_BYTES`."""
    budget_bytes: int | None = None
    """Maximum bytes of data folder and experiments' folders together; None: unlimited."""

    def reserve_of(self, volume: Volume) -> int:
        """Returns the bytes to keep free on this volume."""
        if self.reserve_bytes is not None:
            return self.reserve_bytes
        return min(limits.DISK_RESERVE_SIZE_BYTES, volume.size_bytes // 20)


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of the volumes, with the bytes about to be written."""

    volumes: dict[str, Volume]
    """Sizes of the volumes, each by one folder on the volume."""
    used_bytes: int
    """Bytes of all files counted towards the budget; 0 without a budget."""
    need_bytes: int
    """Bytes of the next checkpoints and weights of all running experiments, as far as known."""


def judge(reading: Reading, allowed: DiskLimits, *, short: bool) -> Obstacle | None:
    """Returns the obstacle of too little disk space; None if there is enough. Pure.

    With `short` (a shortage was reported before), somewhat more than the limit has to be free, so that the verdict does
    not flicker.
    """
    for folder, volume in reading.volumes.items():
        reserve_bytes = allowed.reserve_of(volume)
        # Hysteresis: at the bare limit a run would pause and resume with each small file appearing and disappearing,
        # and each pause costs the rollouts under way.
        wanted_bytes = reserve_bytes + reading.need_bytes + (reserve_bytes // 4 if short else 0)
        if reserve_bytes and volume.free_bytes < wanted_bytes:
            return Obstacle(
                cause=DISK_FULL,
                reason=f"{size(volume.free_bytes)} are free on the volume of {folder}; {size(reserve_bytes)} stay free"
                f"{_checkpoint_words(reading)}",
                fix=f"free {size(wanted_bytes - volume.free_bytes)} there, with rftd gc, rm or archive --to, or serve "
                "with a smaller --disk-reserve; it continues automatically",
            )
    budget_bytes = allowed.budget_bytes
    if budget_bytes is None:
        return None
    wanted_bytes = reading.used_bytes + reading.need_bytes + (budget_bytes // 20 if short else 0)
    if wanted_bytes <= budget_bytes:
        return None
    return Obstacle(
        cause=DISK_BUDGET,
        reason=f"{size(reading.used_bytes)} of the budget of {size(budget_bytes)} are used{_checkpoint_words(reading)}",
        fix=f"remove {size(wanted_bytes - budget_bytes)}, with rftd gc, rm or archive --to, or serve with a larger "
        "--disk-budget; it continues automatically",
    )


def _checkpoint_words(reading: Reading) -> str:
    """Returns a clause with the bytes of the next checkpoint; empty if unknown."""
    return f", and the next checkpoint takes {size(reading.need_bytes)}" if reading.need_bytes else ""


class DiskGuard:
    """Measures disk space once a second; `shortage` is the latest verdict (None: enough), after unused files were
    deleted.
    """

    def __init__(
        self,
        disk: Disk,
        data_folder: Path,
        allowed: DiskLimits,
        *,
        clock: Clock,
        logger: Logger,
        metrics: Metrics | None = None,
    ) -> None:
        """`data_folder` is the daemon's data folder."""
        self.shortage: Obstacle | None = None
        """The latest verdict; None: enough space."""
        self.collect: Callable[[], Awaitable[None]] | None = None
        """Deletes unused files; set by the supervisor."""
        self.folders: Callable[[], Sequence[Path]] = tuple
        """Returns the folders of experiments with files here; set by the supervisor."""
        self._disk = disk
        self._data = data_folder
        """The daemon's data folder."""
        self._allowed = allowed
        self._clock = clock
        self._logger = logger
        self._metrics = metrics
        self._jobs: dict[Path, Callable[[], int]] = {}
        """Function of each running experiment returning the bytes about to be written, by the experiment's folder."""
        self._used_bytes = 0
        """Bytes of all counted files at the last count."""
        self._count_at_s = 0.0
        """Monotonic time of the next count."""
        self._collect_at_s = 0.0
        """Earliest monotonic time of the next attempt to free space."""
        self._looking = asyncio.Lock()
        """Lock held during one measurement."""
        self._measuring: dict[str, asyncio.Future[Any]] = {}
        """Measurements running in threads, by subject; one of a hanging file system stays here until it returns."""

    async def attend(self, job: Path, need: Callable[[], int]) -> None:
        """Registers a running experiment by its folder `job`; `need` returns the bytes its workers are
        about to write.
        """
        self._jobs[job] = need
        self._count_at_s = 0.0
        await self.look()

    def leave(self, job: Path) -> None:
        """Unregisters the experiment in folder `job` after its run."""
        self._jobs.pop(job, None)

    async def run(self) -> None:
        """Measures the disks once a second until cancelled."""
        while True:
            # Judged before the run's first worker starts, so that an experiment without enough space pauses instead of
            # failing a write.
            await self.look()
            await self._clock.sleep(POLL_INTERVAL_S)

    async def look(self) -> None:
        """Measures once; if space is short, deletes unused files and measures again. A disk that does not answer
        changes nothing.
        """
        # The loop and a starting run may look at once: two concurrent counts of a million files take twice as long.
        async with self._looking:
            try:
                shortage = await self._measure_and_judge()
                if (
                    shortage is not None
                    and self.collect is not None
                    and self._clock.monotonic_s() >= self._collect_at_s
                ):
                    # Set before the attempt: a failing or hanging attempt is not repeated with every look.
                    self._collect_at_s = self._clock.monotonic_s() + COLLECT_S
                    with suppress(TimeoutError):
                        async with asyncio.timeout(COLLECT_TIMEOUT_S):
                            await self.collect()
                    self._count_at_s = 0.0
                    shortage = await self._measure_and_judge()
            except (OSError, TimeoutError) as error:
                self._logger.warning(
                    "disk.silent",
                    path=", ".join(map(str, self._jobs or (self._data,))),
                    reason=str(error) or "no answer",
                )
                return
            self._update_shortage(shortage)

    async def _measure_and_judge(self) -> Obstacle | None:
        """Measures every volume, counts files if due, and returns the obstacle of a shortage; None if space is
        sufficient. Raises TimeoutError.
        """
        volumes = {}
        for folder in (self._data, *self._jobs):
            volumes[str(folder)] = await self._measured(
                str(folder), partial(self._disk.volume, folder), MEASURE_TIMEOUT_S
            )
        began_s = self._clock.monotonic_s()
        if self._allowed.budget_bytes is not None and began_s >= self._count_at_s:
            count = partial(self._disk.used_bytes, self._counted_folders())
            self._used_bytes = await self._measured("", count, COUNT_TIMEOUT_S)
            now_s = self._clock.monotonic_s()
            # As a share of the counting time: a fixed interval would be too long for a small folder, and leave no disk
            # bandwidth for a large one.
            self._count_at_s = now_s + COUNT_SHARE * (now_s - began_s)
        if self._metrics is not None:
            self._metrics.disk_free.set(min(volume.free_bytes for volume in volumes.values()))
            self._metrics.disk_used.set(self._used_bytes)
        need_bytes = sum(need() for need in self._jobs.values())
        reading = Reading(volumes=volumes, used_bytes=self._used_bytes, need_bytes=need_bytes)
        return judge(reading, self._allowed, short=self.shortage is not None)

    async def _measured(self, subject: str, measure: Callable[[], T], timeout_s: float) -> T:
        """Returns the outcome of `measure`, run in a thread. Raises TimeoutError; the next call awaits that thread."""
        # A thread in a system call on a hanging file system cannot be cancelled: a time-out ends only the waiting. One
        # more thread with every look would use up the loop's pool, needed by requests and snapshots too.
        running = self._measuring.get(subject)
        if running is None:
            running = self._measuring[subject] = asyncio.ensure_future(asyncio.to_thread(measure))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(running)
        finally:
            if running.done():
                self._measuring.pop(subject, None)

    def _counted_folders(self) -> list[Path]:
        """Returns the folders whose files count towards the budget: the data folder, and experiments' folders outside
        it.
        """
        data_folder = self._data.absolute()
        job_folders = {folder.absolute() for folder in self.folders()}
        return [data_folder, *sorted(folder for folder in job_folders if not folder.is_relative_to(data_folder))]

    def _update_shortage(self, shortage: Obstacle | None) -> None:
        """Publishes a new verdict, with metrics and a log line for each change."""
        before = self.shortage
        self.shortage = shortage
        if self._metrics is not None:
            for cause in (DISK_FULL, DISK_BUDGET):
                self._metrics.disk_short.labels(cause).set(float(shortage is not None and shortage.cause == cause))
        if shortage is not None and before is None:
            self._logger.warning("disk.short", cause=shortage.cause, reason=shortage.reason, fix=shortage.fix)
        elif shortage is None and before is not None:
            self._logger.info("disk.room_again", cause=before.cause)
