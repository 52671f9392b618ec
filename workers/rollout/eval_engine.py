"""`EvalEngine`: an engine answering the rows of an evaluation, by exactly the pinned weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

from rftd.ops.errors import ConfigError, RftdError, RolloutError, WeightsElsewhereError, WorkError
from rftd.workers.generation.engine import RolloutEngine
from rftd.workers.rollout.version_gate import UseKind, VersionGate, WeightsUse
from rftd.workers.weights.channel import WeightsRef

SHARED: Final = "shared"
"""Setting `RolloutSpec.eval_engine` for a single engine serving rollouts and evaluations."""

OpenEngine = Callable[[], Awaitable[RolloutEngine]]
"""Function opening an engine without weights."""


class EvalEngine(Protocol):
    """An engine for evaluations, kept on one set of weights while rows are answered."""

    def pinned(self, weights: WeightsRef) -> AbstractAsyncContextManager[RolloutEngine]:
        """A context yielding an engine with exactly these weights, which stay loaded until the context ends.

        Raises RolloutError if the weights cannot be loaded, WeightsElsewhereError if this machine cannot have them.
        """
        ...

    async def lives(self, weights: WeightsRef) -> bool:
        """True if the engine with these weights still works; a broken one is replaced at the next `pinned`, and False
        returned.

        Raises WorkError if this process can open no other engine, ConfigError if a person has to change something
        first.
        """
        ...

    async def close(self) -> None:
        """Closes engines opened for evaluations, but not the rollouts' engine. Idempotent."""
        ...


class OwnEngine:
    """A separate engine for evaluations: needs memory for a second model, while rollouts continue on newer weights."""

    def __init__(self, open_engine: OpenEngine, device: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        """The engine is opened at the first evaluation and stays open; `device` is entered during its computations."""
        self._open_engine = open_engine
        self._device = device
        self._engine: RolloutEngine | None = None
        """Open engine; None before the first evaluation, and after a failed engine was closed."""
        # One at a time, because the rows of a lease are pinned to weights and the engine holds one version.
        self._one_lease = asyncio.Lock()
        """Held while an evaluation uses the engine."""

    @asynccontextmanager
    async def pinned(self, weights: WeightsRef) -> AsyncIterator[RolloutEngine]:
        """A context yielding the separate engine with these weights; see `EvalEngine.pinned`."""
        async with self._one_lease, self._device():
            yield await self._ready(weights)

    async def lives(self, weights: WeightsRef) -> bool:
        """True if the separate engine still works; see `EvalEngine.lives`."""
        assert self._engine is not None
        try:
            # Every engine raises here after a failure, and for a working one the call changes nothing.
            await self._engine.load_weights(weights)
        except RftdError:
            await self.close()
            return False
        return True

    async def close(self) -> None:
        """Closes the separate engine, if open."""
        engine = self._engine
        self._engine = None
        if engine is not None:
            await engine.close()

    async def _ready(self, weights: WeightsRef) -> RolloutEngine:
        """Returns the engine with these weights, opened anew if the old one fails to load them."""
        fresh = self._engine is None
        engine = self._engine = self._engine or await self._open_engine()
        if engine.version == (weights.version, weights.generation):
            return engine
        try:
            await engine.load_weights(weights)
        except WeightsElsewhereError:
            raise
        except RftdError as error:
            if fresh:
                # Like the explorer: weights not loadable now may be loaded later, or the lease may be given to another
                # explorer.
                raise RolloutError(error.what, where=error.where, fix=error.fix) from error
            # The weights or the engine may be at fault. Only a new engine can tell.
            await self.close()
            return await self._ready(weights)
        return engine


class SharedEngine:
    """The rollouts' engine, used for evaluations too: rollouts continue on the evaluated weights, and newer weights
    wait.
    """

    def __init__(
        self, engine: RolloutEngine, gate: VersionGate, device: Callable[[], AbstractAsyncContextManager[None]]
    ) -> None:
        """`gate` tells the weights' loader which weights an evaluation waits for; `device` is entered during
        computations.
        """
        self._engine = engine
        self._gate = gate
        self._device = device

    @asynccontextmanager
    async def pinned(self, weights: WeightsRef) -> AsyncIterator[RolloutEngine]:
        """A context yielding the rollouts' engine with these weights; see `EvalEngine.pinned`."""
        # The device comes second: the rollouts awaited by the gate, and the loading, need it too.
        use = WeightsUse(UseKind.EVALUATION, weights.version, weights.generation)
        async with self._gate.using(use), self._device():
            yield self._engine

    async def lives(self, weights: WeightsRef) -> bool:
        """True if the rollouts' engine still works; see `EvalEngine.lives`."""
        try:
            await self._engine.load_weights(weights)
        except ConfigError:
            raise  # no other engine would do better until a person has mended the cause
        except RftdError as error:
            # The rollouts have no other engine either. A new process opens one.
            raise WorkError(f"the rollout engine failed: {error.what}", where=error.where, fix=error.fix) from error
        return True

    async def close(self) -> None:
        """Does nothing: the rollouts' engine is closed by its owner."""
        return None
