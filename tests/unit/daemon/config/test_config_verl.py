"""The guide's fields below `trainer` and `trainer_config`, where verl trains."""

from __future__ import annotations

from collections.abc import Callable

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
