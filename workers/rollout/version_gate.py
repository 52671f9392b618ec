"""`VersionGate`: it lets rollouts run once the weights in use fit, and weights change once no pinned rollout runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class VersionGate:
    """Rollouts pass when the weights fit. A pinned rollout needs exactly its version, to its end."""

    def __init__(self) -> None:
        self.version = -1
        self._serves: set[int] = set()
        self.waiting = 0
        """Rollouts that may not pass yet."""
        self._pinned_running = 0
        self._pinned_waiting: Counter[int] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def passing(self, version: int, *, pinned: bool) -> AsyncIterator[None]:
        """Holds a place from the moment that the weights fit until the rollout ends."""
        if not pinned:
            # Without the lock where it passes anyhow, which nearly every rollout does.
            if self.version < version:
                async with self._changed:
                    await self._passes(lambda: self.version >= version)
            yield
            return
        self._pinned_waiting[version] += 1
        # Whoever loads weights looks at `wanted`, which has just changed.
        await self.notify()
        try:
            async with self._changed:
                await self._passes(lambda: version in self._serves)
                self._pinned_running += 1
        finally:
            self._pinned_waiting[version] -= 1
        try:
            yield
        finally:
            self._pinned_running -= 1
            await self.notify()

    async def _passes(self, fits: Callable[[], bool]) -> None:
        self.waiting += 1
        try:
            await self._changed.wait_for(fits)
        finally:
            self.waiting -= 1

    def fits(self, version: int, *, pinned: bool) -> bool:
        """True if a rollout of that version passes now."""
        return version in self._serves if pinned else self.version >= version

    @property
    def may_change(self) -> bool:
        """True if no pinned rollout runs."""
        return self._pinned_running == 0

    @property
    def wanted(self) -> int | None:
        """The oldest version that a pinned rollout waits for, if it is not the one in use."""
        waiting = [version for version, count in self._pinned_waiting.items() if count > 0]
        if not waiting or not self._serves.isdisjoint(waiting):
            return None
        # The oldest, for training waits for its groups before those of later versions.
        return min(waiting)

    async def set_version(self, version: int) -> None:
        """The weights in use are now these."""
        self.version = version
        self._serves = {version}
        await self.notify()

    async def serve(self, lost: int) -> None:
        """The weights in use stand in for a version that is lost, too."""
        self._serves.add(lost)
        await self.notify()

    async def notify(self) -> None:
        """Lets everyone look again."""
        async with self._changed:
            self._changed.notify_all()

    async def wait_change(self, timeout_s: float) -> None:
        """Returns at the next change, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait()
        except TimeoutError:
            return
