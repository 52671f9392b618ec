"""Keys of veRL's critic, rewards and trainer that the alignment guide does not name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rftd.daemon.config.verl.key import VerlKey, dropped, field, person, rule, tree
from rftd.daemon.config.verl.key_groups import CHECKPOINTS, OF_CHECKPOINTS, PLUMBING, SPEED, switched, wrapping

_KEPT: Final = "every rollout and evaluation is in the log: `rftd experiences`"
_INSTALLED: Final = "install it as a reward and name it as default_reward_fn_type: docs/extending.md"
_AS_POLICY: Final = "the critic's micro-batches are the policy's"


def _overlong(section: str, longest: str) -> Iterator[VerlKey]:
    """DAPO's penalty for responses near the longest, which the advantage function takes."""
    arguments = "algorithm.advantage_fn_args"
    yield rule(f"{section}.enable", "bool", False, f"{arguments}.overlong_buffer")
    yield rule(f"{section}.len", "int", None, f"{arguments}.overlong_buffer")
    yield rule(f"{section}.penalty_factor", "number", 1.0, f"{arguments}.overlong_penalty")
    yield rule(longest, "count", None, f"{arguments}.max_response_tokens")
    yield dropped(f"{section}.log", "each step reports the rewards", "bool", False)


def _sandbox(section: str) -> tuple[VerlKey, VerlKey]:
    switch = f"{section}.url"
    note = "a reward that runs code is installed as a plug-in: docs/extending.md"
    return person(switch, note, "text"), person(f"{section}.*", note, switch=switch)


CRITIC: Final = (
    tree("critic.cliprange_value", "number", 0.5, "", "critic_clip"),
    tree("critic.grad_clip", "number", 1.0, "", "critic_grad_clip"),
    rule("critic.ppo_mini_batch_size", "count", None, "trainer.trainer_config.critic.ppo_mini_batch_size", read=True),
    rule("critic.ppo_epochs", "count", None, "trainer.trainer_config.critic.ppo_epochs", read=True),
    rule("critic.shuffle", "bool", None, "trainer.trainer_config.critic.shuffle", read=True),
    rule("critic.enable", "bool", None, "algorithm.advantage_fn", "follows algorithm.adv_estimator"),
    tree("critic.optim.weight_decay", "number", 0.01, "", "critic_weight_decay"),
    tree("critic.optim.lr_warmup_steps", "int", -1, "", "critic_lr_warmup_steps"),
    tree("critic.optim.lr_scheduler_type", "text", "constant", "", "critic_lr_scheduler_type"),
    tree("critic.optim.warmup_style", "text", None, "veRL's older name", "critic_lr_scheduler_type"),
    tree("critic.optim.min_lr_ratio", "number", 0.0, "", "critic_min_lr_ratio"),
    person("critic.optim.optimizer", "the critic's optimizer is AdamW", "text", "AdamW"),
    person("critic.optim.betas", "the critic's AdamW has the betas 0.9 and 0.999", "any", [0.9, 0.999]),
    person("critic.optim.lr_warmup_init", "warm-up begins at 0", "number"),
    person("critic.optim.num_cycles", "the cosine schedule here has half a cycle", "number", 0.5),
    person("critic.optim.override_optimizer_config", "the critic's optimizer is AdamW"),
    person("critic.optim.override_optimizer_config.*", "the critic's optimizer is AdamW"),
    dropped("critic.optim.clip_grad", "critic.grad_clip is what veRL clips by", "number", 1.0),
    dropped("critic.optim.total_training_steps", "follows the length of the stage", "int", -1),
    dropped("critic.optim.optimizer_impl", "the critic's optimizer is AdamW", "text", "torch.optim"),
    dropped("critic.optim.zero_indexed_step", PLUMBING, "bool", True),
    rule("critic.strategy", "text", "fsdp", "trainer.trainer_strategy", "as the policy's", read=True),
    tree("critic.use_dynamic_bsz", "bool", None, _AS_POLICY),
    tree("critic.ppo_max_token_len_per_gpu", "count", 32768, _AS_POLICY),
    tree("critic.forward_max_token_len_per_gpu", "count", None, _AS_POLICY),
    tree("critic.forward_micro_batch_size_per_gpu", "count", None, _AS_POLICY),
    tree("critic.ulysses_sequence_parallel_size", "count", 1, _AS_POLICY),
    person("critic.loss_agg_mode", "the value loss is the mean over tokens", "text", "token-mean"),
    person("critic.loss_scale_factor", "the value loss is the mean over tokens", "number"),
    person("critic.model.tokenizer_path", "the tokenizer is that of model.model_path"),
    person("critic.model.hf_config_path", "the config is that of the critic's folder"),
    person("critic.model.external_lib", "code of your own is installed as a plug-in"),
    person("critic.model.override_config", "change config.json of the critic's folder"),
    person("critic.model.override_config.*", "change config.json of the critic's folder"),
    person("critic.model.lora_rank", "a critic is trained whole", "int", 0),
    person("critic.model.lora.rank", "a critic is trained whole", "int", 0),
    person("critic.model.lora.*", "a critic is trained whole", switch="critic.model.lora.rank"),
    *switched("critic.model.mtp", "heads for several tokens are not trained"),
    field("critic.model.trust_remote_code", "bool", False, "model.trust_remote_code"),
    *(
        dropped(f"critic.model.{name}", "a critic is trained whole")
        for name in ("lora_alpha", "target_modules", "exclude_modules", "lora_adapter_path")
    ),
    *(
        dropped(f"critic.model.{name}", SPEED)
        for name in (
            *("enable_activation_offload", "use_shm", "use_liger", "use_fused_kernels", "fused_kernel_options.*"),
            *("tiled_mlp.*", "custom_chat_template", "fsdp_config.reshard_after_forward", "fsdp_config.fsdp_size"),
            "fsdp_config.forward_prefetch",
        )
    ),
    *wrapping("critic.model.fsdp_config"),
    *(dropped(f"critic.checkpoint.{name}", CHECKPOINTS) for name in ("save_contents", "contents", *OF_CHECKPOINTS)),
    dropped("critic.forward_micro_batch_size", _AS_POLICY),
    dropped("critic.rollout_n", "follows rollout.n", "int"),
    dropped("critic.data_loader_seed", "every seed follows from the experiment's", "int", 42),
    dropped("critic.nccl_timeout", PLUMBING, "int", 600),
    dropped("critic.profiler.*", "rftd has no profiler"),
)
REWARD: Final = (
    rule(
        "reward_model.rollout.tensor_model_parallel_size",
        "count",
        None,
        "explorer.auxiliary_models[0].tensor_parallel_size",
    ),
    rule("reward_model.reward_manager", "text", None, "default_reward_fn_type", "naive is the default here"),
    rule("reward.reward_manager.name", "text", "naive", "default_reward_fn_type", "naive is the default here"),
    person("custom_reward_function.*", _INSTALLED, switch="custom_reward_function.path"),
    person("reward.custom_reward_function.*", _INSTALLED, switch="reward.custom_reward_function.path"),
    *_overlong("reward_model.overlong_buffer", "reward_model.overlong_buffer.max_resp_len"),
    *_overlong("reward_model.reward_kwargs.overlong_buffer_cfg", "reward_model.reward_kwargs.max_resp_len"),
    *_overlong("reward.reward_kwargs.overlong_buffer_cfg", "reward.reward_kwargs.max_resp_len"),
    person("reward_model.reward_kwargs.*", "write reward_fn_args of the taskset"),
    person("reward.reward_kwargs.*", "write reward_fn_args of the taskset"),
    *_sandbox("sandbox_fusion"),
    *_sandbox("reward.sandbox_fusion"),
    *_sandbox("reward_model.sandbox_fusion"),
    dropped("reward_model.*", "the reward model is served beside the explorers, and is no part of the trainer"),
    dropped("reward.*", "the reward model is served beside the explorers, and is no part of the trainer"),
)
TRAINER: Final = (
    field("trainer.balance_batch", "bool", True, "trainer.balance_batch"),
    rule("trainer.max_actor_ckpt_to_keep", "int", None, "trainer.max_checkpoints_to_keep", read=True),
    rule("trainer.remove_previous_ckpt_in_save", "bool", False, "trainer.max_checkpoints_to_keep", "true is 1"),
    rule("trainer.val_only", "bool", False, "mode", "bench"),
    person("trainer.default_hdfs_dir", "checkpoints are in folders of this machine"),
    person("trainer.checkpoint_callback_class", "nothing is called when a checkpoint is made"),
    dropped("trainer.max_critic_ckpt_to_keep", "the critic is in the same checkpoint", "count"),
    dropped("trainer.del_local_ckpt_after_load", "max_checkpoints_to_keep says what is kept", "bool", False),
    dropped("trainer.esi_redundant_time", "a checkpoint may be asked for at any time", "int", 0),
    dropped("trainer.log_val_generations", _KEPT, "int", 0),
    dropped("trainer.rollout_data_dir", _KEPT),
    dropped("trainer.validation_data_dir", _KEPT),
    dropped("trainer.ray_wait_register_center_timeout", PLUMBING, "int", 300),
    dropped("trainer.device", "each worker is given its device", "text", "cuda"),
    dropped("trainer.use_legacy_worker_impl", PLUMBING),
    dropped("trainer.use_v1", PLUMBING, "bool", True),
    person("trainer.v1.trainer_mode", "write synchronizer.sync_style", "text", "sync"),
    person("trainer.v1.*", "write synchronizer.sync_style", switch="trainer.v1.trainer_mode"),
    person("trainer.parameter_sync_step", "write synchronizer.sync_interval"),
    dropped("trainer.npu_profile.*", "rftd has no profiler"),
    dropped("trainer.profile_steps", "rftd has no profiler"),
    dropped("trainer.controller_nsight_options.*", "rftd has no profiler"),
    dropped("trainer.worker_nsight_options.*", "rftd has no profiler"),
    dropped("global_profiler.*", "rftd has no profiler"),
    dropped("ray_kwargs.*", "the daemon has its own cluster: docs/cluster.md"),
    dropped("ray_init.*", "the daemon has its own cluster: docs/cluster.md"),
    dropped("transfer_queue.*", "experiences go through the log"),
    dropped("hydra.*", "Hydra's own"),
    person(
        "distillation.enabled", "write algorithm_type: on_policy_distill with explorer.auxiliary_models", "bool", False
    ),
    dropped("distillation.*", "see distillation.enabled"),
    dropped("skip.*", "rollouts are kept in the log"),
)
TRAINERS: Final[tuple[VerlKey, ...]] = (*CRITIC, *REWARD, *TRAINER)
"""In this order: an earlier section wins over a later one that it lies in."""
