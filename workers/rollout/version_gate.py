"""`VersionGate`: rollouts and evaluations run once the weights in use fit; weights change when nobody needs them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rftd.ops.errors import RftdError, RolloutError


class _Evaluation:
    """An evaluation that waits for its weights."""

    def __init__(self, weights: tuple[int, int]) -> None:
        self.weights = weights
        self.refused: RftdError | None = None


class VersionGate:
    """Rollouts pass when the weights fit. A pinned rollout needs exactly its version, to its end.

    An evaluation on the same engine needs exactly its weights, to its end. Rollouts go on beside it. Where it needs
    other weights than those in use, it comes before rollouts that wait for theirs, lest they keep it out for good. It
    never takes a rollout under way back behind the version that it was to begin on: weights go back once those
    rollouts have ended, and until then no more of them begin.
    """

    def __init__(self) -> None:
        self.version = -1
        self._serves: set[int] = set()
        self.waiting = 0
        """Rollouts that may not pass yet."""
        self._weights = (-1, -1)
        self._running: Counter[int] = Counter()
        """Rollouts under way that are not pinned, by the least version that they were to begin on."""
        self._evaluating = 0
        self._evaluations: list[_Evaluation] = []
        """Evaluations that wait for their weights, in the order in which they came."""
        self._pinned_running = 0
        self._pinned_waiting: Counter[int] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def passing(self, version: int, *, pinned: bool) -> AsyncIterator[None]:
        """Holds a place from the moment that the weights fit until the rollout ends."""
        if not pinned:
            # Without the lock where it passes anyhow, which nearly every rollout does.
            if not self._lets_begin(version):
                async with self._changed:
                    await self._passes(lambda: self._lets_begin(version))
            self._running[version] += 1
            try:
                yield
            finally:
                self._running[version] -= 1
                if not self._running[version]:
                    del self._running[version]
                    if self._evaluations:
                        await self.notify()
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

    @asynccontextmanager
    async def evaluating(self, version: int, generation: int) -> AsyncIterator[None]:
        """Holds the weights in use from the moment that they are these until the evaluation is over.

        Raises RolloutError if they cannot be loaded.
        """
        waits = _Evaluation((version, generation))
        self._evaluations.append(waits)
        # Whoever loads weights looks at `awaited`, which may have changed.
        await self.notify()
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: waits.refused is not None or self._weights == waits.weights)
                if waits.refused is not None:
                    raise RolloutError(waits.refused.what, where=waits.refused.where, fix=waits.refused.fix)
                self._evaluating += 1
        finally:
            self._evaluations.remove(waits)
            # Whoever waited behind it: one that was called off lets them begin.
            await self.notify()
        try:
            yield
        finally:
            self._evaluating -= 1
            await self.notify()

    @property
    def evaluations(self) -> int:
        """Evaluations that hold the weights in use, or wait for theirs."""
        return self._evaluating + len(self._evaluations)

    @property
    def evaluates(self) -> bool:
        """True while an evaluation holds the weights in use."""
        return self._evaluating > 0

    @property
    def awaited(self) -> tuple[int, int] | None:
        """The (version, generation) that the first evaluation waits for; None if none waits."""
        return self._evaluations[0].weights if self._evaluations else None

    def may_change_to(self, version: int) -> bool:
        """True if no one needs the weights in use, and no rollout under way was to begin on newer ones than these."""
        return self.may_change and all(least <= version for least in self._running)

    async def refuse(self, weights: tuple[int, int], error: RftdError) -> None:
        """The evaluations that wait for these weights get the error instead."""
        for waits in self._evaluations:
            if waits.weights == weights:
                waits.refused = error
        await self.notify()

    def _lets_begin(self, version: int) -> bool:
        """True if a rollout that is not pinned may begin."""
        if self.version < version:
            return False
        awaited = self.awaited
        return awaited is None or self._evaluating > 0 or version <= awaited[0]

    async def _passes(self, fits: Callable[[], bool]) -> None:
        self.waiting += 1
        try:
            await self._changed.wait_for(fits)
        finally:
            self.waiting -= 1

    def fits(self, version: int, *, pinned: bool) -> bool:
        """True if a rollout of that version passes now."""
        return version in self._serves if pinned else self._lets_begin(version)

    @property
    def may_change(self) -> bool:
        """True if no pinned rollout runs, and no evaluation."""
        return self._pinned_running == 0 and self._evaluating == 0

    @property
    def wanted(self) -> int | None:
        """The oldest version that a pinned rollout waits for, if it is not the one in use."""
        waiting = [version for version, count in self._pinned_waiting.items() if count > 0]
        if not waiting or not self._serves.isdisjoint(waiting):
            return None
        # The oldest, for training waits for its groups before those of later versions.
        return min(waiting)

    async def set_version(self, version: int, generation: int = 0) -> None:
        """The weights in use are now these."""
        self.version = version
        self._weights = (version, generation)
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
