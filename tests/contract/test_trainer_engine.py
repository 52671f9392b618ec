"""What every trainer engine promises: `fake` and `torch` run the same suite."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rftd.daemon.demo.model import make_tiny_model
from rftd.ops.errors import DataError
from rftd.storage.checkpoints import commit_folder, verify
from rftd.streams.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, OptimizerSpec, StageSpec, TrainerSpec
from rftd.workers.training.engine import TrainBatch, TrainerEngine, TrainSample
from rftd.workers.training.engines.registry import make_engine
from rftd.workers.weights import checkpoint

Open = Callable[[StageSpec], TrainerEngine]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("contract") / "tiny", seed=5, hidden_size=32, heads=2)


@pytest.fixture(params=["fake", "torch"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(kind: str, model: Path) -> Open:
    def make(stage: StageSpec) -> TrainerEngine:
        stage = msgspec.structs.replace(stage, trainer=TrainerSpec(engine=kind))
        engine = make_engine(stage.trainer)
        experiment = ExperimentSpec(project="p", name="n", job_dir="/nowhere", stages=(stage,), config={})
        engine.open(experiment, str(model))
        return engine

    return make


def make_stage(name: str = "rft", *, kl_coef: float = 0.01) -> StageSpec:
    sft = name == "sft"
    return StageSpec(
        name=name,
        kind="train" if sft else "both",
        total_steps=40,
        batch_size=4,
        train_batch_size=16,
        algorithm=AlgorithmSpec(
            kind="sft" if sft else "grpo",
            advantage="none" if sft else "grpo",
            policy_loss="sft" if sft else "ppo",
            kl_loss="none" if sft or not kl_coef else "k2",
            kl_loss_args={} if sft or not kl_coef else {"kl_coef": kl_coef},
            optimizer=OptimizerSpec(lr=1e-2, warmup_steps=2, scheduler="cosine"),
        ),
        model=ModelSpec(path="", max_model_len=64, max_prompt_tokens=32, max_response_tokens=32),
    )


def make_batch(step: int, *, repeat: int = 4) -> TrainBatch:
    """Rollouts of four prompts: a response that begins with token 50 has the advantage 1, others -1."""
    rng = np.random.default_rng(step % repeat)
    samples = []
    for group in range(4):
        for member in range(4):
            good = member % 2 == 0
            response = [50 if good else 60, int(rng.integers(7, 120)), 2]
            samples.append(
                TrainSample(
                    tokens=np.array([1, 10 + group, 20, *response], np.uint32),
                    prompt_tokens=3,
                    loss_mask=np.array([1, 1, 1], np.uint8),
                    logprobs=np.full(3, -4.8, np.float32),
                    advantages=np.full(3, 1.0 if good else -1.0, np.float32),
                    reward=float(good),
                    group=group,
                )
            )
    return TrainBatch(step=step, stage_step=step, samples=samples)


def trained(engine: TrainerEngine, stage: StageSpec, steps: range) -> list[str]:
    if steps.start == 1:
        engine.begin_stage(stage)
    checksums = []
    for step in steps:
        engine.train(make_batch(step))
        checksums.append(engine.checksum())
    return checksums


def test_equal_batches_make_equal_weights(opened: Open) -> None:
    stage = make_stage()
    one, two = opened(stage), opened(stage)
    assert one.deterministic
    assert one.checksum() == two.checksum()
    assert one.sha256() == two.sha256()
    history = trained(one, stage, range(1, 5))
    assert trained(two, stage, range(1, 5)) == history
    assert len(set(history)) == 4
    assert one.sha256() == two.sha256()
    assert len(one.sha256()) == 64


def test_an_engine_says_what_its_bits_depend_on(opened: Open, kind: str) -> None:
    stage = make_stage()
    found = opened(stage).environment()
    assert found
    assert found == opened(stage).environment()
    assert all(type(value) is str and value for value in found.values()), "only plain text can be recorded"
    if kind == "torch":
        assert {"torch", "transformers", "threads", "device", "cpu_capability"} <= found.keys()
        assert found["device"] == "cpu"
        assert found["deterministic_algorithms"] == "true"


def test_a_continued_run_equals_an_uninterrupted_one(opened: Open, tmp_path: Path) -> None:
    stage = make_stage()
    whole = trained(opened(stage), stage, range(1, 7))
    first = opened(stage)
    trained(first, stage, range(1, 4))
    for hf in (False, True):
        folder = tmp_path / f"hf-{hf}" / "global_step_3"
        files = commit_folder(folder, lambda temporary, hf=hf: first.save(temporary, hf=hf))  # type: ignore[misc]
        second = opened(stage)
        second.load(folder, stage)
        assert second.checksum() == first.checksum()
        assert trained(second, stage, range(4, 7)) == whole[3:]
        verify(folder, files)


def test_another_stage_takes_the_weights_only(opened: Open, tmp_path: Path) -> None:
    stage, after = make_stage("sft"), make_stage("rft")
    first = opened(stage)
    trained(first, stage, range(1, 4))
    first.save(tmp_path / "global_step_3", hf=False)
    expected = trained(first, after, range(1, 3))
    second = opened(stage)
    second.load(tmp_path / "global_step_3", None)
    assert trained(second, after, range(1, 3)) == expected


def test_exports_name_their_checksum(opened: Open, tmp_path: Path) -> None:
    stage = make_stage()
    engine = opened(stage)
    trained(engine, stage, range(1, 2))
    exported = checkpoint.export(engine.snapshot().weights(), tmp_path / "v1-g0", version=1, generation=0)
    assert exported.checksum == engine.checksum()
    assert (tmp_path / "v1-g0" / "manifest.json").is_file()
    assert exported.size_bytes > 0
    again = checkpoint.export(engine.snapshot().weights(), tmp_path / "again", version=1, generation=0)
    assert (again.checksum, again.manifest) == (exported.checksum, exported.manifest)


def test_a_missing_checkpoint_is_an_error_of_data(opened: Open, tmp_path: Path) -> None:
    stage = make_stage()
    engine = opened(stage)
    before = engine.checksum()
    with pytest.raises(DataError):
        engine.load(tmp_path / "global_step_9", stage)
    assert engine.checksum() == before


def test_close_is_idempotent(opened: Open) -> None:
    engine = opened(make_stage())
    engine.close()
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torch"], indirect=True)
def test_two_processes_make_equal_weights(opened: Open, model: Path, kind: str) -> None:
    script = (
        "import sys, runpy\n"
        "from pathlib import Path\n"
        "suite = runpy.run_path(sys.argv[1])\n"
        "stage = suite['make_stage']()\n"
        "engine = suite['make_engine'](stage.trainer)\n"
        "spec = suite['ExperimentSpec'](project='p', name='n', job_dir='/', stages=(stage,), config={})\n"
        "engine.open(spec, sys.argv[2])\n"
        "print(suite['trained'](engine, stage, range(1, 5))[-1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, __file__, str(model)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    stage = make_stage()
    assert done.stdout.split()[-1] == trained(opened(stage), stage, range(1, 5))[-1]


@pytest.mark.parametrize("kind", ["torch"], indirect=True)
def test_sft_lowers_its_loss(opened: Open) -> None:
    stage = make_stage("sft")
    engine = opened(stage)
    engine.begin_stage(stage)
    losses = [engine.train(make_batch(step)).metrics["actor/sft_loss"] for step in range(1, 25)]
    assert np.mean(losses[-4:]) < 0.5 * np.mean(losses[:4])


@pytest.mark.parametrize("kind", ["torch"], indirect=True)
def test_grpo_prefers_what_was_rewarded(opened: Open, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    stage = make_stage(kl_coef=0.0)
    engine = opened(stage)
    trained(engine, stage, range(1, 9))
    engine.save(tmp_path, hf=True)
    policy = AutoModelForCausalLM.from_pretrained(tmp_path / "actor" / "huggingface").eval()  # type: ignore[no-untyped-call]
    logits = policy(input_ids=torch.tensor([[1, 10, 20]])).logits[0, -1]
    rewarded, other, punished = logits[50].item(), logits[70].item(), logits[60].item()
    assert rewarded > other > punished
    assert AutoTokenizer.from_pretrained(tmp_path / "actor" / "huggingface").decode([50])


@pytest.mark.parametrize("kind", ["torch"], indirect=True)
def test_the_hugging_face_folder_holds_equal_weights_once(opened: Open, model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    stage = make_stage("sft")
    engine = opened(stage)
    trained(engine, stage, range(1, 3))
    engine.save(tmp_path, hf=True)
    assert sorted(path.name for path in (tmp_path / "actor").iterdir()) == [
        "huggingface",
        "optimizer.safetensors",
        "trainer_state.json",
    ]
    exported = checkpoint.export(engine.snapshot().weights(), tmp_path / "weights", version=2, generation=0)
    saved = load_file(tmp_path / "actor" / "huggingface" / "model.safetensors")
    for name, value in load_file(Path(exported.path) / "model.safetensors").items():
        assert saved[name].equal(value), name
    again = make_engine(TrainerSpec())
    again.open(
        ExperimentSpec(project="p", name="n", job_dir="/nowhere", stages=(stage,), config={}),
        str(tmp_path / "actor" / "huggingface"),
    )
    assert again.checksum() == engine.checksum()
