"""A tiny model, stages and batches for the torch trainer engine; a rehearsal of Tinker's service, and a bench there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from synthetic.models.tinker_rehearsal import KEY, Rehearsal, RehearsalService

from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, StageSpec, TrainerSpec
from rftd.workers.engines.contract.trainer import TrainerBench
from rftd.workers.engines.tinker import sdk
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.models.tiny_model import make_tiny_model

MakeStage = Callable[..., StageSpec]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of some ten thousand parameters."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", seed=7, hidden_size=32, heads=2)


@pytest.fixture
def make_stage() -> MakeStage:
    """A stage of `grpo` or `sft`; the rest are fields of its algorithm, optimizer and trainer."""

    def make(
        kind: str = "grpo",
        *,
        budget_tokens: int = 8192,
        prefix_sharing: str = "auto",
        kl_coef: float = 0.0,
        entropy_coef: float = 0.0,
        mode: str = "token-mean",
        optimizer: Optimizer | None = None,
        dtype: str = "float32",
    ) -> StageSpec:
        return StageSpec(
            name=kind,
            kind="train" if kind == "sft" else "both",
            total_steps=100,
            batch_size=4,
            train_batch_size=16,
            algorithm=AlgorithmSpec(
                kind=kind,
                advantage="none" if kind == "sft" else "grpo",
                policy_loss="sft" if kind == "sft" else "ppo",
                kl_loss="k2" if kl_coef else "none",
                kl_loss_args={"kl_coef": kl_coef} if kl_coef else {},
                entropy_loss="default",
                entropy_loss_args={"entropy_coef": entropy_coef},
                loss_agg_mode=mode,
                optimizer=optimizer or Optimizer(lr=1e-2, decay_all=True),
            ),
            model=ModelSpec(path="", max_model_len=64, max_prompt_tokens=32, max_response_tokens=32),
            trainer=TrainerSpec(
                max_tokens_per_micro_batch=budget_tokens, dtype=dtype, engine_args={"prefix_sharing": prefix_sharing}
            ),
        )

    return make


@pytest.fixture
def make_batch() -> Callable[..., TrainBatch]:
    """Groups of random responses of various lengths to random prompts, some tokens masked."""

    def make(step: int = 1, *, groups: int = 4, members: int = 4, masked: bool = True) -> TrainBatch:
        rng = np.random.default_rng(step)
        samples = []
        for group in range(groups):
            prompt = rng.integers(7, 120, int(rng.integers(3, 9)))
            for _ in range(members):
                length = int(rng.integers(1, 8))
                mask = (rng.random(length) < 0.8) if masked else np.ones(length)
                mask[-1] = 1
                samples.append(
                    TrainSample(
                        tokens=np.concatenate([prompt, rng.integers(7, 120, length)]).astype(np.uint32),
                        prompt_tokens=len(prompt),
                        loss_mask=mask.astype(np.uint8),
                        logprobs=rng.normal(-4.8, 0.3, length).astype(np.float32),
                        advantages=np.full(length, rng.normal(), np.float32),
                        reward=float(rng.random()),
                        group=group,
                    )
                )
        return TrainBatch(step=step, stage_step=step, samples=samples)

    return make


@pytest.fixture
def open_engine(tiny_model: Path) -> Callable[..., TorchTrainerEngine]:
    """An engine with the tiny model, or another one, at the beginning of a stage."""

    def opened(stage: StageSpec, model: Path = tiny_model) -> TorchTrainerEngine:
        engine = TorchTrainerEngine(threads=1)
        experiment = ExperimentSpec(
            project="p", name="n", job_dir="/nowhere", stages=(stage,), deterministic=True, config={}
        )
        engine.open(experiment, str(model))
        engine.begin_stage(stage)
        return engine

    return opened


@pytest.fixture
def service() -> Rehearsal:
    """Tinker's service, rehearsed."""
    return Rehearsal()


@pytest.fixture
def way(service: Rehearsal) -> RehearsalService:
    """The way to it of one process."""
    return RehearsalService(service)


@pytest.fixture
def bench(tmp_path: Path, way: RehearsalService, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainerBench]:
    """Engines that train there, without a reference."""
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    monkeypatch.setattr(sdk, "connect", lambda _access: way)
    made = TrainerBench("tinker", tmp_path, arguments={"base_model": "org/tiny"}, kl_coef=0.0)
    yield made
    made.close()
