"""The guide's fields below `trainer` and `trainer_config`, where verl trains."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from rftd.daemon.config.loading import Submission
from rftd.workers.devices.host import ANY_HOST, Device, Host

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
VERL = "trainer.trainer_type=verl"
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
WARMUP = STAGES.replace("- stage_name: rft\n", "")
GPU = Device(kind="cuda", index=0, name="g", uuid="GPU-0", memory_bytes=1 << 36, visible="0")
ON_CPU = Host(no_gpu="nvidia-smi not found", packages={"verl": "0.9.1"})
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
    assert any("FSDP2 is used instead" in text for text in spec.warnings)


def test_on_gpus_what_is_left_out_is_as_in_verl(load: Load) -> None:
    def arguments(host: Host, *overrides: str) -> dict[str, object]:
        return load(overrides=[VERL, *overrides], host=host).spec.stages[0].trainer.engine_args

    half = "trainer.engine_args.dtype=bfloat16"
    gpus = tuple(msgspec.structs.replace(GPU, index=index, visible=str(index)) for index in range(2))
    whole = msgspec.structs.replace(ON_GPU, devices=gpus)
    without_kernels = msgspec.structs.replace(whole, packages={"verl": "0.9.1"})
    assert arguments(whole, half) == {"gradient_checkpointing": True, "use_remove_padding": True}
    # flash-attn attends in bfloat16 alone.
    assert arguments(whole) == {"gradient_checkpointing": True}
    assert arguments(without_kernels, half) == {"gradient_checkpointing": True}
    assert arguments(ON_CPU, half) == {}
    assert arguments(ANY_HOST, half) == {"gradient_checkpointing": True}
    written = ["trainer.use_remove_padding=false", "trainer.engine_args.gradient_checkpointing=false"]
    assert arguments(whole, half, *written) == {"gradient_checkpointing": False, "use_remove_padding": False}


def test_what_cannot_act_is_said_by_name(load: Load) -> None:
    idle = "trainer.trainer_config.actor_rollout_ref.actor.use_torch_compile=false"
    spec = load(overrides=[VERL, TREE, idle], host=ON_CPU).spec
    assert spec.stages[0].trainer.engine_args == {"gradient_checkpointing": True, "fsdp_size": -1}
    said = "\n".join(spec.warnings)
    for words in (
        "fsdp_config.param_offload has no effect: verl trains on the CPU",
        "model.use_remove_padding has no effect: texts are padded, on one rank each: flash-attn is not",
        "actor.use_torch_compile has no effect: changes speed or memory alone",
    ):
        assert words in said


def test_what_would_spare_memory_in_verl_is_said_to_do_nothing(load: Load) -> None:
    for name in ("model.use_fused_kernels", "actor.entropy_from_logits_with_chunking"):
        override = f"trainer.trainer_config.actor_rollout_ref.{name}=true"
        said = load(overrides=[VERL, override], host=ON_GPU).spec.warnings
        assert f"trainer.trainer_config.actor_rollout_ref.{name} has no effect: changes speed or memory alone" in said


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


CRITIC = "trainer.trainer_config.critic"
ACTOR = "trainer.trainer_config.actor_rollout_ref.actor"
MODEL = "trainer.trainer_config.actor_rollout_ref.model"
PPO = "algorithm={algorithm_type: ppo}"


@pytest.mark.parametrize("engine", ["torch", "verl"])
@pytest.mark.parametrize(
    ("override", "says"),
    [
        (f"{MODEL}.override_config={{rope_theta: 3}}", "change config.json of the model's folder"),
        (f"{MODEL}.override_config.attention_dropout=0.1", "change config.json of the model's folder"),
        (f"{CRITIC}.optim.betas=[0.5, 0.9]", "the critic's AdamW has the betas"),
        (f"{CRITIC}.optim.optimizer=SGD", "the critic's optimizer is AdamW"),
        (f"{CRITIC}.strategy=megatron", "megatron-core"),
        (f"{ACTOR}.strategy=megatron", "megatron-core"),
        (f"{CRITIC}.loss_agg_mode=seq-mean-token-sum", "the value loss is the mean over tokens"),
        (f"{ACTOR}.fsdp_config.dtype=float16", "write trainer.engine_args.dtype"),
        (f"{ACTOR}.checkpoint.save_contents=hf_model", "write a list of texts"),
        ("trainer.trainer_config.actor_rollout_ref.rollout.temperature=0.5", "write model.temperature"),
        ("trainer.trainer_config.data.train_batch_size=5", "write synchronizer.sync_interval"),
        ("trainer.trainer_config.trainer.resume_mode=resume_path", "rftd fork NAME --at-step STEP"),
        ("trainer.trainer_config.trainer.resume_from_path=/x", "write continue_from_checkpoint"),
        (
            "trainer.trainer_config.trainer.remove_previous_ckpt_in_save=true",
            "write trainer.max_checkpoints_to_keep (true is 1)",
        ),
        ("trainer.trainer_config.foo.bar=1", "is not a key of veRL"),
        ("trainer.trainer_config.actor=3", "write a mapping"),
        (f"{ACTOR}.xyzzy_zz=1", "is not a key of veRL"),
        (f"{CRITIC}.optim.weight_decai=1", "did you mean 'critic.optim.weight_decay'?"),
        (f"{CRITIC}.strategi=fsdp", "did you mean 'critic.strategy'?"),
        ("trainer.trainer_config.trainer.resume_mod=auto", "did you mean 'trainer.resume_mode'?"),
        (f"{MODEL}.use_remove_padding=maybe", "write true or false"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=lots", "write a whole number"),
        (f"{CRITIC}.optim.lr_warmup_steps_ratio=1.5", "1.0"),
        (f"{CRITIC}.optim.warmup_style=cosin", "did you mean 'cosine'?"),
        (f"{CRITIC}.optim.weight_decay=-1", ">= 0"),
    ],
)
def test_no_key_of_the_tree_is_taken_that_does_nothing(errors: Errors, engine: str, override: str, says: str) -> None:
    texts = errors(overrides=[f"trainer.trainer_type={engine}", PPO, override], host=ON_CPU)
    place = override.partition("=")[0].removesuffix(".override_config")
    assert any(says in text and place in text for text in texts), texts
    assert len(texts) == 1, texts


@pytest.mark.parametrize(
    ("override", "why"),
    [
        (f"{ACTOR}.megatron.tensor_model_parallel_size=2", "only used by Megatron, and torch trains"),
        (f"{ACTOR}.profiler.enable=true", "rftd has no profiler"),
        ("trainer.trainer_config.actor_rollout_ref.rollout.gpu_memory_utilization=0.4", "write explorer.rollout_model"),
        ("trainer.trainer_config.trainer.max_critic_ckpt_to_keep=5", "the critic is in the same checkpoint"),
        (f"{CRITIC}.ppo_micro_batch_size_per_gpu=8", "the critic's micro-batches are the policy's"),
        (f"{MODEL}.enable_gradient_checkpointing=false", "only used by verl, and torch trains"),
        ("trainer.trainer_config.trainer.val_before_train=false", "explorer.eval_on_startup decides"),
        ("trainer.trainer_config.trainer.total_training_steps=7", "buffer.total_steps decides"),
        (f"{CRITIC}.optim.lr=0.1", "the algorithm has no critic"),
        ("trainer.engine_args.critic_lr=0.1", "the algorithm has no critic"),
    ],
)
def test_what_changes_nothing_that_is_learned_is_named_with_the_reason(load: Load, override: str, why: str) -> None:
    place = override.partition("=")[0]
    said = [text for text in load(overrides=[override]).spec.warnings if text.startswith(f"{place} has no effect: ")]
    assert [why in text for text in said] == [True]


def test_verls_own_sections_and_keys_are_told_their_place(errors: Errors) -> None:
    texts = errors(overrides=["actor_rollout_ref={actor: {ppo_epochs: 2}}", "trainer.resume_mode=auto", "trainer.xy=1"])
    said = {text.partition("fix: it is veRL's: write it ")[2].partition(",")[0] for text in texts}
    assert said == {"below trainer.trainer_config", "as trainer.trainer_config.trainer.resume_mode", ""}


def test_a_new_start_in_verls_word_is_continue_from_checkpoint(load: Load, errors: Errors) -> None:
    disable = "trainer.trainer_config.trainer.resume_mode=disable"
    assert load(overrides=[disable]).config["continue_from_checkpoint"] is False
    assert load(overrides=[disable, "continue_from_checkpoint=false"]).config["continue_from_checkpoint"] is False
    (text,) = errors(overrides=[disable, "continue_from_checkpoint=true"])
    assert "keep continue_from_checkpoint only" in text


@pytest.mark.parametrize(
    ("key", "default", "ours", "value"),
    [
        ("trainer.resume_mode", "auto", "continue_from_checkpoint=false", "'disable'"),
        ("actor_rollout_ref.rollout.n", "1", "algorithm.repeat_times=8", "8"),
        ("actor_rollout_ref.actor.grad_clip", "1.0", "trainer.grad_clip=0.5", "0.5"),
        ("actor_rollout_ref.actor.use_kl_loss", "false", "algorithm.kl_loss_fn=k2", "True"),
        ("trainer.total_epochs", "30", "buffer.total_epochs=3", "3"),
    ],
)
def test_a_default_of_verl_that_another_field_contradicts_is_named(
    load: Load, key: str, default: str, ours: str, value: str
) -> None:
    written = f"trainer.trainer_config.{key}"
    said = [text for text in load(overrides=[f"{written}={default}", ours]).spec.warnings if text.startswith(written)]
    assert said == [f"{written} has no effect: {ours.partition('=')[0]} is {value} in veRL's terms"]


def test_a_key_of_verl_that_says_what_the_field_says_asks_for_nothing(load: Load) -> None:
    ours = ["algorithm.optimizer.lr=2e-5", "algorithm.repeat_times=6"]
    same = "trainer.trainer_config.actor_rollout_ref={actor: {optim: {lr: 2.0e-5}}, rollout: {n: 6}}"
    assert load(overrides=[*ours, same]).spec.warnings == load(overrides=ours).spec.warnings


def test_a_tree_of_defaults_asks_for_nothing(load: Load) -> None:
    tree = (
        "trainer.trainer_config={model: {override_config: {}, external_lib: null, use_fused_kernels: false}, "
        "actor: {checkpoint: {save_contents: [model, optimizer, extra]}, optim: {lr: 1.0e-6, warmup_style: constant}}, "
        "critic: {optim: {lr_warmup_steps_ratio: 0.0}, model: null}, ref: null, "
        "trainer: {resume_mode: auto, resume_from_path: ''}}"
    )
    said = set(load(overrides=[PPO, tree]).spec.warnings) - set(load(overrides=[PPO]).spec.warnings)
    assert said == set()


@pytest.mark.parametrize("engine", ["torch", "verl"])
def test_the_critic_has_an_optimizer_and_a_schedule_of_its_own(load: Load, engine: str) -> None:
    optim = "{lr: 2.0e-5, lr_warmup_steps_ratio: 0.05, warmup_style: cosine, weight_decay: 0.1, min_lr_ratio: 0.2}"
    given = [f"trainer.trainer_type={engine}", PPO, f"{CRITIC}.optim={optim}"]
    spec = load(overrides=given, host=ON_CPU).spec
    assert spec.stages[0].trainer.engine_args == {
        "critic_lr": 2e-5,
        "critic_lr_warmup_steps_ratio": 0.05,
        "critic_lr_scheduler_type": "cosine",
        "critic_weight_decay": 0.1,
        "critic_min_lr_ratio": 0.2,
    }
    assert not [text for text in spec.warnings if "critic" in text]


def test_checkpoints_that_verl_would_keep_are_kept(load: Load, errors: Errors, small: str) -> None:
    kept = "trainer.trainer_config.trainer.max_actor_ckpt_to_keep"
    assert load(overrides=[f"{kept}=5"]).spec.stages[0].trainer.max_checkpoints_to_keep == 5
    text = small + "trainer: {trainer_config: {trainer: {max_actor_ckpt_to_keep: null}}}"
    assert load(text).spec.stages[0].trainer.max_checkpoints_to_keep == 0
    twice = "trainer: {max_checkpoints_to_keep: 3, trainer_config: {trainer: {max_actor_ckpt_to_keep: 5}}}"
    (said,) = errors(small + twice)
    assert "set twice with different values" in said


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["trainer.use_dynamic_bsz=false"],
            "trainer.use_dynamic_bsz has no effect: the number of responses per micro-batch is not set",
        ),
        ([f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"], "per_gpu has no effect: use_dynamic_bsz is true"),
    ],
)
def test_how_micro_batches_are_cut_is_said(load: Load, overrides: list[str], words: str) -> None:
    assert any(words in text for text in load(overrides=[VERL, *overrides], host=ON_CPU).spec.warnings)
    both = [VERL, "trainer.use_dynamic_bsz=false", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"]
    found = load(overrides=both, host=ON_CPU).spec
    assert found.stages[0].trainer.engine_args == {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 4}
    assert not [text for text in found.warnings if "bsz" in text or "micro_batch" in text]


@pytest.mark.parametrize("engine", ["torch", "verl"])
def test_a_misspelled_key_is_an_error_with_any_engine(errors: Errors, engine: str) -> None:
    tree = "trainer.trainer_config={actor_rollout_ref: {ref: {fsdp_config: {parm_offload: true}}}}"
    (text,) = errors(overrides=[f"trainer.trainer_type={engine}", tree], host=ON_CPU)
    assert "trainer.trainer_config.actor_rollout_ref.ref.fsdp_config.parm_offload" in text
    assert "did you mean 'actor_rollout_ref.ref.fsdp_config.param_offload'?" in text


LORA = "model.lora_configs=[{name: a, lora_rank: 8}]"


def test_verl_trains_a_lora_where_it_is_written_and_where_it_is_chosen(load: Load) -> None:
    two = msgspec.structs.replace(ON_GPU, devices=(GPU, msgspec.structs.replace(GPU, index=1, visible="1")))
    alone = "trainer.engine_args={lora_publish: adapter}"
    for overrides in ([VERL, LORA, alone], [LORA, alone]):
        (stage,) = load(overrides=overrides, host=two).spec.stages
        assert stage.trainer.engine == "verl"
        assert stage.trainer.engine_args["lora_publish"] == "adapter"
        assert stage.model.lora is not None


def test_every_stage_has_the_gpus_that_explorers_leave(load: Load, small: str) -> None:
    """One trainer process serves all stages: it cannot begin with one rank and go on with three."""
    four = Host(
        devices=tuple(msgspec.structs.replace(GPU, index=number, visible=str(number)) for number in range(4)),
        packages={"verl": "0.9.1", "vllm": "0.31.0"},
    )
    written = "trainer.engine_args={ranks: 2}"
    spec = load(small + STAGES, overrides=["explorer.rollout_model.engine_type=vllm", written], host=four).spec
    assert [stage.trainer.devices for stage in spec.stages] == [3, 3]
    assert any("ranks 2 has no effect: verl has one rank per GPU (3)" in text for text in spec.warnings)
    alone = small + STAGES.replace("- stage_name: rft\n", "")
    assert load(alone, host=four).spec.stages[0].trainer.devices == 4
    (on_cpu,) = load(alone, overrides=["trainer.engine_args={device: cpu}"], host=four).spec.stages
    assert on_cpu.trainer.devices == 0


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("actor_rollout_ref.actor.clip_ratio=0.3", "write algorithm.policy_loss_fn_args.clip_range"),
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
