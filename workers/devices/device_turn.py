"""`DeviceTurn`: rollouts and training steps take turns on one device, across processes.

Two files in the job's folder serve as locks and are never read. Rollouts share the lock `room`, a training step has it
alone. A process about to train first locks `door`, so that no further rollout begins while the running ones end. The
kernel releases locks when a process ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from rftd.ops.clock import Clock

DOOR = "turn.door"
"""Lock file of a process about to train, keeping further rollouts out."""
ROOM = "turn.room"
"""Lock file of the device: shared by rollouts, or held by one training step alone."""
POLL_INTERVAL_S: Final = 0.01
"""Seconds between two tries for a lock held by another process."""


@runtime_checkable
class Resting(Protocol):
    """An engine able to free its device's memory between turns; generation and training need the memory back."""

    async def rest(self) -> None:
        """Frees as much memory as possible; weights and state stay on the host."""
        ...

    async def wake(self) -> None:
        """Occupies the memory again, with equal weights and state."""
        ...


class DeviceTurn:
    """The turns of one process on a device shared with other processes."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        """`folder` is on this machine's own disk, and the same for every process sharing the device."""
        self._folder = folder
        self._clock = clock
        self._door = self._room = -1
        self._inside = 0
        self.waiting = 0
        """Number of rollouts and steps of this process that wait for a turn."""
        self._engines: list[Resting] = []
        self._asleep = False
        self._power = asyncio.Lock()

    @property
    def shared(self) -> bool:
        """True if an engine of this process frees its memory between turns."""
        return bool(self._engines)

    def share(self, engine: object) -> None:
        """Registers an engine, to free its memory between the turns of this process, if it can."""
        if isinstance(engine, Resting):
            self._engines.append(engine)

    @asynccontextmanager
    async def rollout(self) -> AsyncIterator[None]:
        """Waits until no process trains, then excludes training for the duration of the context; many rollouts may
        overlap.
        """
        await self._until(self._enter)
        try:
            await self._wake()
            yield
        finally:
            try:
                # The last rollout lets the engines rest, before the room is unlocked: a trainer loads into the memory
                # then free.
                if self._inside == 1:
                    await self._rest()
            finally:
                self._inside -= 1
                if not self._inside:
                    _unlock(self._room)

    @asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        """Waits until every rollout on the device has ended, then excludes rollouts for the duration of the context."""
        # The door first: an uninterrupted series of rollouts would keep the room shared for ever.
        await self._until(lambda: _locked(self._door, fcntl.LOCK_EX))
        try:
            await self._until(lambda: _locked(self._room, fcntl.LOCK_EX))
        finally:
            _unlock(self._door)
        try:
            await self._wake()
            yield
        finally:
            try:
                await self._rest()
            finally:
                _unlock(self._room)

    def close(self) -> None:
        """Closes both lock files, and so releases all locks. Idempotent."""
        for descriptor in {self._door, self._room} - {-1}:
            os.close(descriptor)
        self._door = self._room = -1

    async def _until(self, try_lock: Callable[[], bool]) -> None:
        """Tries a lock again and again until it is held; counts as waiting meanwhile."""
        self._open()
        self.waiting += 1
        try:
            while not try_lock():
                # Polled, not awaited: a blocking flock would occupy a thread that nothing could cancel.
                await self._clock.sleep(POLL_INTERVAL_S)
        finally:
            self.waiting -= 1

    def _enter(self) -> bool:
        """Tries to enter the room through the door as a rollout; True if it is inside."""
        if not _locked(self._door, fcntl.LOCK_SH):
            return False
        try:
            # One lock for all rollouts of this process: flock belongs to the open file, so a second lock would be the
            # same one.
            if not self._inside and not _locked(self._room, fcntl.LOCK_SH):
                return False
            self._inside += 1
            return True
        finally:
            _unlock(self._door)

    def _open(self) -> None:
        """Opens the two lock files, unless they are open."""
        if self._door < 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._door, self._room = (
                os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for name in (DOOR, ROOM)
            )

    async def _wake(self) -> None:
        # One at a time: a rollout arriving while the engines fall asleep must find all of them asleep, not half.
        """Wakes all engines, if asleep."""
        async with self._power:
            if self._asleep:
                for engine in self._engines:
                    await engine.wake()
                self._asleep = False

    async def _rest(self) -> None:
        """Lets the engines rest, unless another rollout came in meanwhile."""
        async with self._power:
            if self._engines and not self._asleep and self._inside <= 1:
                # Before the engines rest: one that fails has released some memory, and is woken all the same.
                self._asleep = True
                for engine in self._engines:
                    await engine.rest()


def _unlock(descriptor: int) -> None:
    """Releases a lock file, unless it is closed."""
    if descriptor >= 0:  # closed already, which unlocks
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _locked(descriptor: int, kind: int) -> bool:
    """Tries to lock a file without waiting; True if it is locked."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
