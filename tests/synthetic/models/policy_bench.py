"""`PolicyBench`: an engine of vLLM's with what transformers says of the same weights, and the figures of both."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from synthetic.models.scripted_engine import running_endpoint
from synthetic.models.vllm_engines import MAX_MODEL_LEN, Policies, make_vllm_model, opened_as_auxiliary

from rftd.workers.engines.contract.rollout.bench import EngineBench
from rftd.workers.generation.auxiliary.auxiliary_model import AuxiliaryModel
from rftd.workers.generation.engine import Generation, GenerationRequest, RolloutEngine
from rftd.workers.weights.channel import WeightsRef

if TYPE_CHECKING:
    from rftd.workers.engines.vllm.engine import VllmRolloutEngine

SLOTS = 128
ON_GPU = os.environ.get("RFTD_TEST_DEVICE") == "cuda"
CLOSE = 2e-2 if ON_GPU else 1e-4
"""Of log-probabilities in float32, by other kernels than transformers': a GPU's attention multiplies in TF32: up to
0.0124 on an H200."""
APART = 2 * CLOSE if ON_GPU else 10 * CLOSE
"""Those of other weights are further away."""


@dataclass(frozen=True)
class PolicyBench:
    """The engine, opened for an auxiliary model as an explorer does, and the policies that it is given in turn."""

    engine: VllmRolloutEngine
    policies: Policies
    kind: str
    judge: AuxiliaryModel
    figures: dict[str, float] = field(default_factory=dict)
    """What was measured, for tests/bench/vllm_policy.py: the largest of each."""

    def check_close(self, what: str, request: GenerationRequest, drawn: Generation) -> None:
        """Each log-probability is transformers' own."""
        error = self.policies.error(request, drawn)
        self.note(f"largest log-probability error: {what}", error)
        assert error <= CLOSE

    def note(self, what: str, value: float) -> None:
        """Keeps the largest."""
        self.figures[what] = max(value, self.figures.get(what, 0.0))

    async def load(self, update: WeightsRef, what: str) -> None:
        """Loads the weights; in no worker process is anything made of them, or on a CPU copied, between two steps."""
        began_s = time.monotonic()
        assert await self.engine.load_weights(update) == update.checksum
        counts = await self.engine._call("rollout_copies", all_workers=True)
        assert not any(loaded for _, loaded in counts), "what the swap puts in place is prepared before"
        assert ON_GPU or not any(numbers for numbers, _ in counts), "layers change places"
        self.note(f"longest update, ms: {what}", 1000 * (time.monotonic() - began_s))

    def contract(self) -> EngineBench:
        """What the contract of rollout engines is held against, over this engine."""

        async def opened() -> RolloutEngine:
            return self.engine

        other = self.policies.folder / "other"
        if not other.exists():
            make_vllm_model(other, seed=2, kind=self.kind)
        published = self.policies.folder / f"contract-{self.engine.version[0]}"
        return EngineBench(opened, published, (self.policies.base, other), max_model_len=MAX_MODEL_LEN)


@asynccontextmanager
async def opened_bench(folder: Path, kind: str) -> AsyncIterator[PolicyBench]:
    """The bench for a kind of model, until the context ends; one test after another may use it."""
    policies = Policies(folder, kind)
    policies.publish(0)
    began_s = time.monotonic()
    async with (
        running_endpoint() as endpoint,
        opened_as_auxiliary(policies.base, endpoint, slots=SLOTS, kind=kind) as (judge, engine),
    ):
        made = PolicyBench(engine, policies, kind, judge)
        made.note("seconds until the first response", time.monotonic() - began_s)
        yield made


def append_figures(path: Path, figures: dict[str, object]) -> None:
    """Adds what was measured to a file, as a line of JSON."""
    with path.open("a") as file:
        file.write(json.dumps(figures) + "\n")
