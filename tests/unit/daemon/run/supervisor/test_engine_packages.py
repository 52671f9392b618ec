"""A daemon without torch refuses what it would start itself, with what is missing, and leaves the rest to workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rftd.daemon.run.supervisor import engine_packages
from rftd.daemon.run.supervisor.preflight import preflight
from rftd.ops.errors import NotInstalledError
from rftd.ops.extras import PACKAGES
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, RolloutSpec, StageSpec, TrainerSpec
from rftd.workers.devices.host import ANY_HOST, Device, Host

CPU = Device(kind="cpu", index=0, name="8 processors", memory_bytes=32 << 30)
BARE = Host(devices=(CPU,))
WHOLE = Host(devices=(CPU,), packages=dict.fromkeys(PACKAGES["torch"], "1.0"))


def experiment(folder: Path, rollout: str = "fake", trainer: str = "fake") -> ExperimentSpec:
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}))
    (folder / "model.safetensors").write_bytes(len(b"{}").to_bytes(8, "little") + b"{}")
    stage = StageSpec(
        name="main",
        kind="both",
        total_steps=1,
        batch_size=1,
        train_batch_size=1,
        algorithm=AlgorithmSpec(kind="grpo"),
        model=ModelSpec(path=str(folder), max_model_len=64, max_prompt_tokens=32, max_response_tokens=32),
        rollout=RolloutSpec(engine=rollout),
        trainer=TrainerSpec(engine=trainer),
    )
    return ExperimentSpec(project="p", name="n", job_dir=str(folder), config={}, stages=(stage,))


@pytest.mark.parametrize(
    ("rollout", "trainer", "field"),
    [("torch", "fake", "explorer.rollout_model.engine_type"), ("fake", "torch", "trainer.trainer_type")],
)
def test_an_engine_without_its_packages_is_refused_where_the_daemon_starts_it(
    tmp_path: Path, rollout: str, trainer: str, field: str
) -> None:
    spec = experiment(tmp_path, rollout, trainer)
    with pytest.raises(NotInstalledError, match="the torch engine needs safetensors, tokenizers, torch") as refused:
        preflight(spec, BARE)
    assert (refused.value.field, refused.value.fix) == (field, "pip install 'rftd[torch]'")
    preflight(spec, WHOLE)
    preflight(spec, ANY_HOST)
    preflight(experiment(tmp_path), BARE)


def test_a_daemon_without_the_packages_says_what_it_left_to_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert preflight(experiment(tmp_path, "torch"), ANY_HOST).warnings == ()
    monkeypatch.setattr(engine_packages, "missing_of", lambda extra: ["transformers"])
    (warning,) = preflight(experiment(tmp_path, "torch"), ANY_HOST).warnings
    assert warning.startswith("the kind of the model and its tokenizer are left to workers")
    assert preflight(experiment(tmp_path), ANY_HOST).warnings == ()
