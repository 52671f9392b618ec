"""`EngineBench`: an opened engine for many checks, with two sets of weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from rftd.ops.clock import SystemClock
from rftd.ops.decoding import converted
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, RolloutSpec, StageSpec
from rftd.workers.generation.engine import GenerationRequest, RolloutEngine, Sampling
from rftd.workers.generation.engine_registry import open_engine
from rftd.workers.models.tiny_model import make_tiny_model, make_tokenizer
from rftd.workers.weights import checkpoint, safetensors
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.tensor_bytes import Weights

MAX_MODEL_LEN: Final = 96
"""Maximum tokens of prompt and response of the contract's models."""
SLOTS: Final = 4
"""Number of concurrent requests of the opened engine."""
PATIENCE_S: Final = 60.0
"""Maximum seconds that a check waits for the engine's counters."""


class EngineBench:
    """An opened rollout engine, and two sets of weights for it, for checks."""

    def __init__(
        self,
        opened: Callable[[], Awaitable[RolloutEngine]],
        folder: Path,
        models: tuple[Path, Path],
        *,
        max_model_len: int = MAX_MODEL_LEN,
    ) -> None:
        """Prepares a bench without an engine; `ready` opens one by `opened`, which may return an engine used before, if
        idle.

        `models` are two folders of one architecture with different weights; published weights go below `folder`.
        """
        self.max_model_len = max_model_len
        """Maximum tokens of a prompt and its response."""
        self._opened = opened
        self._folder = folder
        self._engine: RolloutEngine | None = None
        self._exported = 0
        self._weights = tuple(safetensors.read(model / "model.safetensors") for model in models)
        self.tokenizer = make_tokenizer()

    async def ready(self) -> RolloutEngine:
        """Returns the idle engine, with the first set of weights loaded under its next version."""
        if self._engine is None:
            self._engine = await self._opened()
            if not self._engine.stats().requests_total:
                assert self._engine.version == (-1, -1), "an engine has no weights before the first"
        await until(lambda: is_idle(self.engine))
        await self.load(0)
        return self.engine

    @property
    def engine(self) -> RolloutEngine:
        """The engine opened by `ready`."""
        assert self._engine is not None
        return self._engine

    def weights(self, index: int) -> Weights:
        """Returns one of the two sets of weights."""
        return self._weights[index]

    def published(self, weights: Weights) -> WeightsRef:
        """Publishes weights in the form of the channel `checkpoint`, under the engine's next version."""
        self._exported += 1
        version = self.engine.version[0] + 1
        folder = self._folder / f"{self._exported}"
        exported = checkpoint.export(weights, folder, version=version, generation=0)
        return WeightsRef(
            version=version, generation=0, path=exported.path, manifest=exported.manifest, checksum=exported.checksum
        )

    async def load(self, index: int) -> int:
        """Publishes and loads one of the two sets of weights; returns the version."""
        weights = self.published(self.weights(index))
        assert await self.engine.load_weights(weights) == weights.checksum
        assert self.engine.version == (weights.version, weights.generation)
        return weights.version

    async def close(self) -> None:
        """Closes the engine; the next `ready` opens a new one."""
        engine = self._engine
        self._engine = None
        if engine is not None:
            await engine.close()


@asynccontextmanager
async def opened(
    engine: str,
    folder: Path,
    *,
    arguments: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    make_model: Callable[..., Path] = make_tiny_model,
) -> AsyncIterator[EngineBench]:
    """Opens the engine by its registered name, as an explorer does, until the context ends. `folder` is empty.

    `make_model(folder, seed=...)` writes the model, if the engine cannot run the tiny Qwen2 of the demo; its tokenizer
    must be the demo's.
    """
    models = (make_model(folder / "one", seed=1), make_model(folder / "two", seed=2))
    stage = StageSpec(
        name="contract",
        kind="both",
        total_steps=1,
        batch_size=1,
        train_batch_size=1,
        algorithm=AlgorithmSpec(kind="grpo", advantage="grpo", policy_loss="ppo"),
        model=ModelSpec(path=str(models[0]), max_model_len=MAX_MODEL_LEN, max_prompt_tokens=32, max_response_tokens=64),
        rollout=RolloutSpec(engine=engine, dtype=dtype, engine_args=dict(arguments or {})),
    )
    job = ExperimentSpec(project="contract", name=engine, job_dir=str(folder / "job"), stages=(stage,), config={})
    bench = EngineBench(lambda: open_engine(job, stage, slots=SLOTS, clock=SystemClock()), folder / "published", models)
    try:
        yield bench
    finally:
        await bench.close()


def ask(number: int = 0, *, prompt: tuple[int, ...] = (20, 30, 40), **sampling: Any) -> GenerationRequest:
    """Builds a request with the id `number` for 12 tokens, unless overridden by `sampling`."""
    settings = converted({"max_tokens": 12, "min_tokens": 12, **sampling}, Sampling)
    return GenerationRequest(id=UUID(int=number), prompt=prompt, sampling=settings)


def is_idle(engine: RolloutEngine) -> bool:
    """True if no request is running or waiting."""
    stats = engine.stats()
    return not stats.running and not stats.waiting


async def until(condition: Callable[[], bool]) -> None:
    """Yields to the event loop until the condition on the engine's counters holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (an engine has counters, no events)
            await asyncio.sleep(0.001)
