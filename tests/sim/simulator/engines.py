"""The fake engines as a world wants them: rollouts that fail and hang, weights that no re-execution repeats."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable

import msgspec

from rftd.ops.errors import RftdError, RolloutError
from rftd.workers.engines.fake.rollout import FakeRolloutEngine
from rftd.workers.engines.fake.trainer import FakeTrainerEngine
from rftd.workers.generation.engine import Generation, GenerationRequest
from rftd.workers.learning.engine import StepResult, TrainBatch
from rftd.workers.weights.channel import WeightsRef
from simulator.loop import PROCESS


class Mishaps:
    """How often rollouts of the present world go wrong."""

    def __init__(self, seed: int, *, fail_p: float, hang_p: float, salted: bool) -> None:
        self.random = random.Random(seed)
        self.fail_p, self.hang_p = fail_p, hang_p
        self.salted = salted
        """Weights differ between processes that train the same plan, as on a GPU."""
        self.unread: Callable[[WeightsRef], None] = lambda _: None
        """Is told of weights that an explorer could not load."""
        self.damaged: Callable[[WeightsRef], bool] = lambda _: False
        """True for weights that are damaged, or gone, on purpose."""


class SimRolloutEngine(FakeRolloutEngine):
    """The fake engine, in a world with mishaps."""

    mishaps: Mishaps

    async def generate(self, request: GenerationRequest) -> Generation:
        chance = self.mishaps.random.random()
        if chance < self.mishaps.fail_p:
            raise RolloutError("injected: the workflow fails")
        if chance < self.mishaps.fail_p + self.mishaps.hang_p:
            await asyncio.sleep(1000.0)
        return await super().generate(request)

    async def load_weights(self, weights: WeightsRef) -> str:
        excused = self.mishaps.damaged(weights)
        try:
            return await super().load_weights(weights)
        except RftdError:
            if not excused:  # they may be there again by the time at which this is heard of
                self.mishaps.unread(weights)
            raise


class SimTrainerEngine(FakeTrainerEngine):
    """The fake engine; salted, its weights tell which process trained them."""

    mishaps: Mishaps

    @property
    def deterministic(self) -> bool:
        return not self.mishaps.salted

    def train(self, batch: TrainBatch) -> StepResult:
        result = super().train(batch)
        if self.mishaps.salted:
            salt = f"{self._state.weights} {PROCESS.get().pid}".encode()
            self._state = msgspec.structs.replace(self._state, weights=hashlib.sha256(salt).hexdigest())
        return result
