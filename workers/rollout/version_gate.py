"""`VersionGate`: lets rollouts and evaluations start on suitable weights, and weights change while nothing needs the
loaded ones.
"""

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
    """Coordinates rollouts, evaluations and weight changes on one engine.

    A pinned rollout needs exactly one version until its end; an unpinned one that version or any newer. An evaluation
    needs exactly one set of weights until its end; rollouts continue beside it. With other weights loaded, a waiting
    evaluation precedes waiting rollouts, lest they keep it out for good. A running rollout is never moved to a version
    older than its first: weights go back only after such rollouts have ended, and until then no more of them begin.
    """

    def __init__(self) -> None:
        self.version = -1
        self._serves: set[int] = set()
        self.waiting = 0
        """Number of rollouts waiting for suitable weights."""
        self._weights = (-1, -1)
        self._running: Counter[int] = Counter()
        """Number of running unpinned rollouts by the least version required at their beginning."""
        self._changing = False
        """True during a load: the engine swaps at any time, so nothing needing exact weights may begin."""
        self._evaluating = 0
        self._evaluations: list[_Evaluation] = []
        """Evaluations waiting for their weights, in the order of arrival."""
        self._pinned_running = 0
        self._pinned_waiting: Counter[int] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def passing(self, version: int, *, pinned: bool) -> AsyncIterator[None]:
        """A context for one rollout: waits on entry for `version` (exactly, if `pinned`), and counts the rollout as
        running until exit.
        """
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
                await self._wait_until(lambda: self.fits(version, pinned=True))
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
        """A context for one evaluation: waits for these weights on entry, and keeps them loaded until exit.

        Raises RolloutError if the weights cannot be loaded.
        """
        evaluation = _Evaluation((version, generation))
        self._evaluations.append(evaluation)
        # The loader reads `awaited`, which may have changed.
        await self.notify()
        try:
            async with self._changed:
                await self._changed.wait_for(
                    lambda: (
                        evaluation.refused is not None or (self._weights == evaluation.weights and not self._changing)
                    )
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
        """Number of evaluations using the loaded weights, or waiting for others."""
        return self._evaluating + len(self._evaluations)

    @property
    def evaluates(self) -> bool:
        """True while an evaluation uses the loaded weights."""
        return self._evaluating > 0

    @property
    def weights(self) -> tuple[int, int]:
        """The (version, generation) loaded last; (-1, -1) before the first."""
        return self._weights

    @property
    def awaited(self) -> tuple[int, int] | None:
        """The (version, generation) needed by the first waiting evaluation; None if none waits."""
        return self._evaluations[0].weights if self._evaluations else None

    def may_change_to(self, version: int) -> bool:
        """True if `version` may be loaded: nothing needs the loaded weights, and no running rollout began on a newer
        version.
        """
        return self.may_change and all(begun_on <= version for begun_on in self._running)

    async def refuse(self, weights: tuple[int, int], error: RftdError) -> None:
        """Fails the evaluations waiting for these weights with `error`."""
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
        """True if a rollout requiring `version` (exactly, if `pinned`) could begin now."""
        return (version in self._serves and not self._changing) if pinned else self._lets_begin(version)

    @property
    def may_change(self) -> bool:
        """True if no pinned rollout and no evaluation is running."""
        return self._pinned_running == 0 and self._evaluating == 0

    @property
    def wanted(self) -> int | None:
        """The oldest version needed by a waiting pinned rollout; None if none waits, or the loaded version
        suits one.
        """
        waiting = [version for version, count in self._pinned_waiting.items() if count > 0]
        if not waiting or not self._serves.isdisjoint(waiting):
            return None
        # The oldest, because training waits for the groups of an older version first.
        return min(waiting)

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """A context for one load of weights; until its exit no evaluation and no pinned rollout begins."""
        self._changing = True
        try:
            yield
        finally:
            self._changing = False
            await self.notify()

    async def set_version(self, version: int, generation: int = 0) -> None:
        """Records the weights just loaded, and wakes everything waiting."""
        self.version = version
        self._weights = (version, generation)
        self._serves = {version}
        await self.notify()

    async def serve(self, lost: int) -> None:
        """Lets the loaded weights stand in for the lost version `lost`, whose rollouts may then begin."""
        self._serves.add(lost)
        await self.notify()

    async def notify(self) -> None:
        """Makes all waiting rollouts and evaluations check their conditions again."""
        async with self._changed:
            self._changed.notify_all()

    async def wait_change(self, timeout_s: float) -> None:
        """Returns at the next change of the gate's state, or after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait()
        except TimeoutError:
            return
