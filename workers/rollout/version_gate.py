"""`VersionGate`: lets rollouts and evaluations start on suitable weights, and weights change while nothing needs the
loaded ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from enum import Enum

from rftd.ops.errors import RftdError, RolloutError


class UseKind(Enum):
    """Kind of a use of the loaded weights, by the weights that the use requires."""

    ROLLOUT = "rollout"
    """Rollouts that begin on their version or a newer one; newer weights may be loaded while they run."""
    PINNED = "pinned"
    """Rollouts that need exactly their version until their end, or weights standing in for a lost version."""
    EVALUATION = "evaluation"
    """Evaluation that needs exactly its version and generation until its end."""


class WeightsUse:
    """One use of the loaded weights: the rollouts of a lease, or an evaluation."""

    def __init__(self, kind: UseKind, version: int, generation: int = 0) -> None:
        """`version` and `generation` are the required weights; `generation` matters to evaluations only."""
        self.kind = kind
        self.version = version
        self.generation = generation
        self.refused: RftdError | None = None
        """Error that fails the waiting use; None without one."""

    @property
    def weights(self) -> tuple[int, int]:
        """The (version, generation) required by the use."""
        return self.version, self.generation


class VersionGate:
    """Gate that coordinates rollouts, evaluations and weight changes on one engine.

    With other weights loaded, a waiting evaluation precedes waiting rollouts, lest they keep it out for good. A running
    rollout is never moved to a version older than its first: weights go back only after such rollouts have ended, and
    until then no more of them begin.
    """

    def __init__(self) -> None:
        """Begins without weights."""
        self.weights = (-1, -1)
        """The (version, generation) loaded last; (-1, -1) before the first."""
        self._stood_in_for: set[int] = set()
        """Lost versions for which the loaded weights stand in."""
        self._changing = False
        """True during a load: the engine swaps at any time, so nothing needing exact weights may begin."""
        self._waiting: dict[UseKind, dict[WeightsUse, None]] = {kind: {} for kind in UseKind}
        """Uses waiting for suitable weights, in the order of arrival."""
        self._running: dict[UseKind, set[WeightsUse]] = {kind: set() for kind in UseKind}
        """Uses that have begun and not ended."""
        self._changed = asyncio.Event()
        """Set at the next change of the gate, and replaced."""

    @property
    def version(self) -> int:
        """Version of the loaded weights; -1 before the first."""
        return self.weights[0]

    @property
    def held(self) -> bool:
        """True while an evaluation or a pinned rollout uses the loaded weights."""
        return bool(self._running[UseKind.EVALUATION] or self._running[UseKind.PINNED])

    @asynccontextmanager
    async def using(self, use: WeightsUse) -> AsyncIterator[None]:
        """A context for one use: waits on entry until it may begin, and counts it as running until exit.

        Raises RolloutError if the weights cannot be loaded.
        """
        try:
            if not self.may_begin(use):
                await self._wait(use)
            self._running[use.kind].add(use)
            yield
        finally:
            self._running[use.kind].discard(use)
            # Weights may change beside rollouts that are not pinned, unless an evaluation waits for older ones.
            if use.kind is not UseKind.ROLLOUT or self._waiting[UseKind.EVALUATION]:
                self.notify()

    async def _wait(self, use: WeightsUse) -> None:
        """Waits until the use may begin."""
        self._waiting[use.kind][use] = None
        try:
            self.notify()  # the loader looks for awaited weights
            while use.refused is None and not self.may_begin(use):
                await self._changed.wait()
            if use.refused is not None:
                raise RolloutError(use.refused.what, where=use.refused.where, fix=use.refused.fix)
        finally:
            del self._waiting[use.kind][use]
            if use.kind is UseKind.EVALUATION:
                self.notify()  # rollouts wait behind an evaluation, which may be cancelled

    def may_begin(self, use: WeightsUse) -> bool:
        """True if the loaded weights suit the use, and nothing precedes it."""
        match use.kind:
            case UseKind.EVALUATION:
                return self.weights == use.weights and not self._changing
            case UseKind.PINNED:
                return not self._changing and (use.version == self.version or use.version in self._stood_in_for)
            case UseKind.ROLLOUT:
                if self.version < use.version:
                    return False
                awaited = self.awaited_by_evaluation
                return awaited is None or use.version <= awaited[0] or bool(self._running[UseKind.EVALUATION])

    def may_go_to(self, version: int) -> bool:
        """True if `version` may be loaded: nothing holds the loaded weights, and no running rollout began on a newer
        version.
        """
        return not self.held and all(use.version <= version for use in self._running[UseKind.ROLLOUT])

    @property
    def awaited_by_evaluation(self) -> tuple[int, int] | None:
        """The (version, generation) of the first waiting evaluation; None if none waits."""
        return next((use.weights for use in self._waiting[UseKind.EVALUATION]), None)

    @property
    def awaited_by_pinned(self) -> int | None:
        """The oldest version of the waiting pinned rollouts; None if none waits, or the loaded weights suit one."""
        versions = {use.version for use in self._waiting[UseKind.PINNED]}
        if self.version in versions or not self._stood_in_for.isdisjoint(versions):
            return None
        # The oldest, because training waits for the groups of an older version first.
        return min(versions, default=None)

    def refuse(self, weights: tuple[int, int], error: RftdError) -> None:
        """Fails the evaluations waiting for these weights with `error`."""
        for use in self._waiting[UseKind.EVALUATION]:
            if use.weights == weights:
                use.refused = error
        self.notify()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A context for one load of weights; until its exit no evaluation and no pinned rollout begins."""
        self._changing = True
        try:
            yield
        finally:
            self._changing = False
            self.notify()

    def set_weights(self, version: int, generation: int = 0) -> None:
        """Records the weights just loaded, and wakes everything waiting."""
        self.weights = (version, generation)
        self._stood_in_for.clear()
        self.notify()

    def stand_in(self, lost: int) -> None:
        """Lets the loaded weights stand in for the lost version `lost`, whose rollouts may then begin."""
        self._stood_in_for.add(lost)
        self.notify()

    def notify(self) -> None:
        """Makes everything waiting check its condition again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_change(self, timeout_s: float) -> None:
        """Returns at the next change of the gate's state, or after `timeout_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
