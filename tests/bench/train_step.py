"""How long one GRPO step of the demo's size takes on one thread. Run: python -P tests/bench/train_step.py"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from figures import read_options, tell

from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, StageSpec, TrainerSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.models.tiny_model import make_tiny_model


def make_stage(budget_tokens: int, prefix_sharing: str) -> StageSpec:
    """A GRPO stage without KL."""
    return StageSpec(
        name="rft",
        kind="both",
        total_steps=1000,
        batch_size=32,
        train_batch_size=256,
        algorithm=AlgorithmSpec(
            kind="grpo",
            advantage="grpo",
            policy_loss="ppo",
            entropy_loss="default",
            optimizer=Optimizer(lr=1e-3, decay_all=True),
        ),
        model=ModelSpec(path="", max_model_len=64, max_prompt_tokens=32, max_response_tokens=32),
        trainer=TrainerSpec(max_tokens_per_micro_batch=budget_tokens, engine_args={"prefix_sharing": prefix_sharing}),
    )


def make_batch(groups: int, members: int, prompt: int, response: int, step: int) -> TrainBatch:
    """Random tokens: responses of one group share their prompt."""
    rng = np.random.default_rng(step)
    samples = []
    for group in range(groups):
        start = rng.integers(7, 120, prompt)
        for _ in range(members):
            length = int(rng.integers(max(1, response - 2), response + 1))
            samples.append(
                TrainSample(
                    tokens=np.concatenate([start, rng.integers(7, 120, length)]).astype(np.uint32),
                    prompt_tokens=prompt,
                    loss_mask=np.ones(length, np.uint8),
                    logprobs=np.full(length, -4.8, np.float32),
                    advantages=np.full(length, rng.normal(), np.float32),
                    group=group,
                )
            )
    return TrainBatch(step=step, stage_step=step, samples=samples)


def main() -> None:
    """Prints the median time of a step for each setting."""
    options = read_options(__doc__, steps=15, prompt=12, response=8)
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "model", seed=1)
        for sharing in ("never", "auto"):
            for budget_tokens in (512, 1024, 2048, 8192):
                stage = make_stage(budget_tokens, sharing)
                engine = TorchTrainerEngine(threads=1)
                engine.open(
                    ExperimentSpec(project="p", name="n", job_dir=folder, stages=(stage,), config={}), str(model)
                )
                engine.begin_stage(stage)
                times_ms = []
                for step in range(1, options.steps + 1):
                    batch = make_batch(32, 8, options.prompt, options.response, step)
                    began = time.perf_counter()
                    engine.train(batch)
                    engine.checksum()
                    times_ms.append(1e3 * (time.perf_counter() - began))
                shown = {"sharing": sharing, "budget_tokens": budget_tokens, "ms": statistics.median(times_ms[3:])}
                tell(shown)


if __name__ == "__main__":
    main()
