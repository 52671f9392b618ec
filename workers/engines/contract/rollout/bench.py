"""`EngineBench`: an opened engine for many checks, with two sets of weights for it."""

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
SLOTS: Final = 4
PATIENCE_S: Final = 60.0
"""The longest wait of a check for counters of the engine."""


class EngineBench:
    """An opened engine, and two sets of weights for it."""

    def __init__(
        self,
        opened: Callable[[], Awaitable[RolloutEngine]],
        folder: Path,
        models: tuple[Path, Path],
        *,
        max_model_len: int = MAX_MODEL_LEN,
    ) -> None:
        """`models`: folders of one architecture with other weights; `folder` is for what is published.

        `opened` may give an engine that has done other work, if nothing runs there any more.
        """
        self.max_model_len = max_model_len
        """Most tokens of a prompt and its response."""
        self._opened = opened
        self._folder = folder
        self._engine: RolloutEngine | None = None
        self._exported = 0
        self._weights = tuple(safetensors.read(model / "model.safetensors") for model in models)
        self.tokenizer = make_tokenizer()

    async def ready(self) -> RolloutEngine:
        """The engine with the first set of weights, under the version after its own, and nothing to do."""
        if self._engine is None:
            self._engine = await self._opened()
            if not self._engine.stats().requests_total:
                assert self._engine.version == (-1, -1), "an engine has no weights before the first"
        await until(lambda: is_idle(self.engine))
        await self.load(0)
        return self.engine

    @property
    def engine(self) -> RolloutEngine:
        """The engine that `ready` has given."""
        assert self._engine is not None
        return self._engine

    def weights(self, which: int) -> Weights:
        """One of the two sets of weights."""
        return self._weights[which]

    def published(self, weights: Weights) -> WeightsRef:
        """The weights as the channel `checkpoint` announces them, under the version after the engine's own."""
        self._exported += 1
        version = self.engine.version[0] + 1
        folder = self._folder / f"{self._exported}"
        written = checkpoint.export(weights, folder, version=version, generation=0)
        return WeightsRef(
            version=version, generation=0, path=written.path, manifest=written.manifest, checksum=written.checksum
        )

    async def load(self, which: int) -> int:
        """Publishes and loads one of the two sets of weights; returns its version."""
        weights = self.published(self.weights(which))
        assert await self.engine.load_weights(weights) == weights.checksum
        assert self.engine.version == (weights.version, weights.generation)
        return weights.version

    async def close(self) -> None:
        """Closes the engine; the next `ready` opens another."""
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
    """The engine of that registered name, as an explorer opens it, until the context ends. `folder` is empty.

    `make_model(folder, seed=...)` writes the model, if the engine cannot run the tiny Qwen2 of the demo; its tokenizer
    has to be that of the demo.
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
    """A request for 12 tokens, unless `sampling` says otherwise."""
    settings = converted({"max_tokens": 12, "min_tokens": 12, **sampling}, Sampling)
    return GenerationRequest(id=UUID(int=number), prompt=prompt, sampling=settings)


def is_idle(engine: RolloutEngine) -> bool:
    """True if no request is under way."""
    stats = engine.stats()
    return not stats.running and not stats.waiting


async def until(condition: Callable[[], bool]) -> None:
    """Gives way until the engine's counters say so."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (an engine has counters, no events)
            await asyncio.sleep(0.001)
