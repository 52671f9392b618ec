"""`VersionGate`: rollouts and evaluations start once the weights in use fit; weights change when nothing needs them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rftd.ops.errors import RftdError, RolloutError


class _Evaluation:
    """An evaluation waiting for weights."""

    def __init__(self, weights: tuple[int, int]) -> None:
        self.weights = weights
        self.refused: RftdError | None = None


class VersionGate:
    """Rollouts pass when the weights fit. A pinned rollout needs exactly one version, until the rollout ends.

    An evaluation on the same engine needs exactly one set of weights, until the end. Rollouts continue beside an
    evaluation. With other weights in use, the evaluation comes before rollouts waiting for weights, lest they keep it
    out for good. A rollout under way is never moved to a version older than its first one: weights go back once those
    rollouts have ended, and until then no more of them begin.
    """

    def __init__(self) -> None:
        self.version = -1
        self._serves: set[int] = set()
        self.waiting = 0
        """Rollouts not yet allowed to pass."""
        self._weights = (-1, -1)
        self._running: Counter[int] = Counter()
        """Unpinned rollouts under way, by the least version at their beginning."""
        self._evaluating = 0
        self._evaluations: list[_Evaluation] = []
        """Evaluations waiting for weights, in the order of arrival."""
        self._pinned_running = 0
        self._pinned_waiting: Counter[int] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def passing(self, version: int, *, pinned: bool) -> AsyncIterator[None]:
        """Waits until the weights fit, then counts the rollout as running until the context is left."""
        if not pinned:
            # Without the lock for a rollout that passes at once, as nearly every rollout does.
            if not self._lets_begin(version):
                async with self._changed:
                    await self._wait_until(lambda: self._lets_begin(version))
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
        # The loader reads `wanted`, which has just changed.
        await self.notify()
        try:
            async with self._changed:
                await self._wait_until(lambda: version in self._serves)
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
        """Waits for these weights, then keeps them in use until the evaluation is over.

        Raises RolloutError if the weights cannot be loaded.
        """
        evaluation = _Evaluation((version, generation))
        self._evaluations.append(evaluation)
        # The loader reads `awaited`, which may have changed.
        await self.notify()
        try:
            async with self._changed:
                await self._changed.wait_for(
                    lambda: evaluation.refused is not None or self._weights == evaluation.weights
                )
                if evaluation.refused is not None:
                    raise RolloutError(
                        evaluation.refused.what, where=evaluation.refused.where, fix=evaluation.refused.fix
                    )
                self._evaluating += 1
        finally:
            self._evaluations.remove(evaluation)
            # Rollouts waiting behind the evaluation: a cancelled one lets them begin.
            await self.notify()
        try:
            yield
        finally:
            self._evaluating -= 1
            await self.notify()

    @property
    def evaluations(self) -> int:
        """Returns the number of evaluations holding the weights in use, or waiting for others."""
        return self._evaluating + len(self._evaluations)

    @property
    def evaluates(self) -> bool:
        """True while an evaluation holds the weights in use."""
        return self._evaluating > 0

    @property
    def awaited(self) -> tuple[int, int] | None:
        """Returns the (version, generation) awaited by the first evaluation; None if none waits."""
        return self._evaluations[0].weights if self._evaluations else None

    def may_change_to(self, version: int) -> bool:
        """True if nothing needs the weights in use, and every rollout under way began on this version or before."""
        return self.may_change and all(begun_on <= version for begun_on in self._running)

    async def refuse(self, weights: tuple[int, int], error: RftdError) -> None:
        """Gives the error to the evaluations waiting for these weights."""
        for evaluation in self._evaluations:
            if evaluation.weights == weights:
                evaluation.refused = error
        await self.notify()

    def _lets_begin(self, version: int) -> bool:
        """True if an unpinned rollout of the version may begin."""
        if self.version < version:
            return False
        awaited = self.awaited
        return awaited is None or self._evaluating > 0 or version <= awaited[0]

    async def _wait_until(self, fits: Callable[[], bool]) -> None:
        """Waits for a condition, counted as a waiting rollout meanwhile."""
        self.waiting += 1
        try:
            await self._changed.wait_for(fits)
        finally:
            self.waiting -= 1

    def fits(self, version: int, *, pinned: bool) -> bool:
        """True if a rollout of the version would pass now."""
        return version in self._serves if pinned else self._lets_begin(version)

    @property
    def may_change(self) -> bool:
        """True if no pinned rollout and no evaluation is under way."""
        return self._pinned_running == 0 and self._evaluating == 0

    @property
    def wanted(self) -> int | None:
        """Returns the oldest version awaited by a pinned rollout, unless the version in use serves one."""
        waiting = [version for version, count in self._pinned_waiting.items() if count > 0]
        if not waiting or not self._serves.isdisjoint(waiting):
            return None
        # The oldest, because training waits for the groups of an older version first.
        return min(waiting)

    async def set_version(self, version: int, generation: int = 0) -> None:
        """Sets the weights now in use, and wakes everything waiting."""
        self.version = version
        self._weights = (version, generation)
        self._serves = {version}
        await self.notify()

    async def serve(self, lost: int) -> None:
        """Lets the weights in use serve for a lost version, too."""
        self._serves.add(lost)
        await self.notify()

    async def notify(self) -> None:
        """Wakes everything waiting at the gate, for another check."""
        async with self._changed:
            self._changed.notify_all()

    async def wait_change(self, timeout_s: float) -> None:
        """Returns at the next change, or after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait()
        except TimeoutError:
            return
