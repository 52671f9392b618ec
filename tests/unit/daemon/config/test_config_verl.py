"""The guide's fields below `trainer` and `trainer_config`, where verl trains."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from rftd.daemon.config.loading import Submission
from rftd.workers.devices.host import Device, Host

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
VERL = "trainer.trainer_type=verl"
GPU = Device(kind="cuda", index=0, name="g", uuid="GPU-0", memory_bytes=1 << 36, visible="0")
ON_CPU = Host(no_gpu="there is no nvidia-smi", packages={"verl": "0.9.1"})
ON_GPU = Host(devices=(GPU,), packages={"verl": "0.9.1", "flash-attn": "2.8.3"})
TREE = (
    "trainer.trainer_config={actor_rollout_ref: {"
    "model: {enable_gradient_checkpointing: true, use_remove_padding: true}, "
    "actor: {ppo_max_token_len_per_gpu: 512, "
    "fsdp_config: {param_offload: true, optimizer_offload: true, fsdp_size: -1}}, "
    "ref: {fsdp_config: {param_offload: true}}}}"
)


def test_what_verl_has_reaches_it_under_its_names(load: Load) -> None:
    overrides = [VERL, TREE, "trainer.save_strategy=single_process", "trainer.trainer_strategy=fsdp"]
    spec = load(overrides=[*overrides, "mode=train"], host=ON_GPU).spec
    trainer = spec.stages[0].trainer
    assert trainer.engine == "verl"
    assert trainer.max_tokens_per_micro_batch == 512
    assert trainer.engine_args == {
        "gradient_checkpointing": True,
        "use_remove_padding": True,
        "param_offload": True,
        "optimizer_offload": True,
        "fsdp_size": -1,
        "ref_param_offload": True,
        "save_strategy": "single_process",
    }
    assert not [text for text in spec.warnings if "no effect" in text]
    assert any("FSDP2 spreads the weights instead" in text for text in spec.warnings)


def test_what_cannot_act_is_said_by_name(load: Load) -> None:
    unknown = "trainer.trainer_config.actor_rollout_ref.actor.tiling=3"
    spec = load(overrides=[VERL, TREE, unknown], host=ON_CPU).spec
    assert spec.stages[0].trainer.engine_args == {"gradient_checkpointing": True, "fsdp_size": -1}
    said = "\n".join(spec.warnings)
    for words in (
        "fsdp_config.param_offload has no effect without GPUs",
        "model.use_remove_padding needs flash-attn",
        "actor.tiling has no effect",
    ):
        assert words in said


def test_what_would_spare_memory_in_verl_is_said_to_do_nothing(load: Load) -> None:
    for name in ("model.use_fused_kernels", "actor.entropy_from_logits_with_chunking"):
        override = f"trainer.trainer_config.actor_rollout_ref.{name}=true"
        said = load(overrides=[VERL, override], host=ON_GPU).spec.warnings
        assert f"trainer.trainer_config.actor_rollout_ref.{name} has no effect" in said


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.trainer_strategy=megatron", "megatron-core"),
        ("trainer.trainer_config={actor: {fsdp_config: {param_offload: 3}}}", "write true or false"),
        ("trainer.trainer_config={actor: {ppo_micro_batch_size_per_gpu: 0}}", "a whole number"),
        (
            "trainer.trainer_config={actor: {ppo_micro_batch_size_pre_gpu: 1}}",
            "did you mean 'actor_rollout_ref.actor.ppo_micro",
        ),
        ("trainer.trainer_config={critic: {model: {use_remove_padding: 3}}}", "write true or false"),
    ],
)
def test_what_verl_does_not_take_is_refused(errors: Errors, override: str, words: str) -> None:
    assert any(words in text for text in errors(overrides=[VERL, override], host=ON_CPU))


@pytest.mark.parametrize("engine", ["torch", "verl"])
def test_a_misspelled_key_is_an_error_with_any_engine(errors: Errors, engine: str) -> None:
    tree = "trainer.trainer_config={actor_rollout_ref: {ref: {fsdp_config: {parm_offload: true}}}}"
    (text,) = errors(overrides=[f"trainer.trainer_type={engine}", tree], host=ON_CPU)
    assert "trainer.trainer_config.actor_rollout_ref.ref.fsdp_config.parm_offload" in text
    assert "did you mean 'actor_rollout_ref.ref.fsdp_config.param_offload'?" in text


LORA = "model.lora_configs=[{name: a, lora_rank: 8}]"


def test_a_lora_is_refused_where_verl_is_written_and_trained_by_torch_where_it_is_not(
    load: Load, errors: Errors
) -> None:
    (text,) = errors(overrides=[VERL, LORA], host=ON_GPU)
    assert text.startswith("exp.yaml") or "model.lora_configs" in text
    assert "a LoRA needs an adapter that learns beside a frozen model, and verl has none" in text
    assert "or train with an engine that has it, such as torch" in text
    two = msgspec.structs.replace(ON_GPU, devices=(GPU, msgspec.structs.replace(GPU, index=1, visible="1")))
    spec = load(overrides=[LORA], host=two).spec
    assert spec.stages[0].trainer.engine == "torch"
    assert any("verl trains whole models, and model.lora_configs names an adapter" in text for text in spec.warnings)


STAGES = """
stages:
- stage_name: warmup
  mode: train
  algorithm: {algorithm_type: sft}
  buffer:
    train_batch_size: 4
    trainer_input: {experience_buffer: {name: w, path: /w.jsonl}}
- stage_name: rft
"""


def test_every_stage_has_the_gpus_that_explorers_leave(load: Load, small: str) -> None:
    """One trainer process serves all stages: it cannot begin with one rank and go on with three."""
    four = Host(
        devices=tuple(msgspec.structs.replace(GPU, index=number, visible=str(number)) for number in range(4)),
        packages={"verl": "0.9.1", "vllm": "0.31.0"},
    )
    written = "trainer.engine_args={ranks: 2}"
    spec = load(small + STAGES, overrides=["explorer.rollout_model.engine_type=vllm", written], host=four).spec
    assert [stage.trainer.devices for stage in spec.stages] == [3, 3]
    assert any("ranks 2 has no effect: verl has one rank for each of its 3 GPUs" in text for text in spec.warnings)
    alone = small + STAGES.replace("- stage_name: rft\n", "")
    assert load(alone, host=four).spec.stages[0].trainer.devices == 4
    (on_cpu,) = load(alone, overrides=["trainer.engine_args={device: cpu}"], host=four).spec.stages
    assert on_cpu.trainer.devices == 0


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("actor_rollout_ref.actor.clip_ratio=0.3", "write algorithm.policy_loss_fn_args.clip_range"),
        ("actor_rollout_ref.actor.optim.lr=0.001", "write algorithm.optimizer.lr"),
        ("actor_rollout_ref.actor.policy_loss.dro_beta=0.1", "the loss dro is not here"),
        ("algorithm.gamma=0.9", "write algorithm.advantage_fn_args.gamma"),
    ],
)
def test_what_would_change_what_is_learned_is_refused_below_trainer_config(
    load: Load, errors: Errors, key: str, fix: str
) -> None:
    override = f"trainer.trainer_config.{key}"
    (text,) = errors(overrides=[override])
    assert f"fix: {fix}" in text
    assert load(overrides=["trainer.trainer_config.actor_rollout_ref.actor.clip_ratio=0.2"]).spec.stages
