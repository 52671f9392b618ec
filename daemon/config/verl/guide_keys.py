"""The keys of veRL that the alignment guide names, one row each: type, veRL's default, the place here, the note."""

from __future__ import annotations

from typing import Final

from rftd.daemon.config.verl.key import VerlKey, dropped, field, rule, tree

_ACTOR: Final = "actor_rollout_ref.actor"
_MODEL: Final = "actor_rollout_ref.model"
_ROLLOUT: Final = "actor_rollout_ref.rollout"
_REF: Final = "actor_rollout_ref.ref"
_ENGINE: Final = "explorer.rollout_model"
_EVAL: Final = "buffer.explorer_input.eval_tasksets[i]"
_TRAIN: Final = "buffer.explorer_input.tasksets[i]"
_WITH_POLICY: Final = "the critic is held as the policy is"
_FORK: Final = "from a step of one's choice: rftd fork NAME --at-step STEP"
_SERVED: Final = "the reward model is served beside the explorers, and is no part of the trainer"

ALGORITHM: Final = (
    rule("algorithm.adv_estimator", "text", "gae", "algorithm.advantage_fn", "with algorithm.algorithm_type"),
    rule("algorithm.gamma", "number", 1.0, "algorithm.advantage_fn_args.gamma", "with ppo and reinforceplusplus"),
    rule("algorithm.lam", "number", 1.0, "algorithm.advantage_fn_args.lam", "with ppo"),
    rule("algorithm.use_kl_in_reward", "bool", False, "algorithm.kl_penalty_fn", "false is none"),
    rule("algorithm.kl_penalty", "text", "kl", "algorithm.kl_penalty_fn", "k1, k2, low_var_kl, abs"),
    rule("algorithm.kl_ctrl.kl_coef", "number", 0.001, "algorithm.kl_penalty_fn_args.kl_coef"),
)
DATA: Final = (
    rule("data.train_files", "texts", "~/data/rlhf/gsm8k/train.parquet", f"{_TRAIN}.path"),
    rule("data.val_files", "texts", "~/data/rlhf/gsm8k/test.parquet", f"{_EVAL}.path"),
    rule("data.prompt_key", "text", "prompt", f"{_TRAIN}.format.prompt_key", "for each taskset"),
    rule("data.response_key", "text", None, f"{_TRAIN}.format.response_key", "for each taskset"),
    rule("data.train_batch_size", "int", 1024, "synchronizer.sync_interval", "buffer.batch_size * sync_interval"),
    dropped("data.val_batch_size", "deprecated in veRL: an evaluation takes its tasksets whole", "count"),
    field("data.max_prompt_length", "count", 512, "model.max_prompt_tokens"),
    field("data.max_response_length", "count", 512, "model.max_response_tokens"),
    field("data.filter_overlong_prompts", "bool", False, "model.enable_prompt_truncation"),
    dropped("data.truncation", "a prompt that is too long counts in no loss, so no side of it is cut", "text", "error"),
    rule("data.shuffle", "bool", True, f"{_TRAIN}.data_selector.selector_type", "shuffle or sequential"),
    dropped("data.return_raw_chat", "workflows get the messages as they are", "bool", True),
)
ACTOR: Final = (
    field(f"{_MODEL}.path", "text", "~/models/deepseek-llm-7b-chat", "model.model_path"),
    tree(f"{_MODEL}.use_remove_padding", "bool", True, "", "use_remove_padding"),
    tree(f"{_MODEL}.enable_gradient_checkpointing", "bool", True, "", "gradient_checkpointing"),
    field(f"{_ACTOR}.optim.lr", "number", 1e-6, "algorithm.optimizer.lr"),
    field(f"{_ACTOR}.optim.lr_warmup_steps_ratio", "number", 0.0, "algorithm.optimizer.lr_warmup_steps_ratio"),
    field(f"{_ACTOR}.optim.weight_decay", "number", 0.01, "algorithm.optimizer.weight_decay"),
    rule(
        f"{_ACTOR}.ppo_mini_batch_size", "count", 256, "buffer.batch_size", "and train_batch_size, times n", read=True
    ),
    tree(f"{_ACTOR}.ppo_micro_batch_size_per_gpu", "count", None, "", "micro_batch_size_per_gpu"),
    field(f"{_ACTOR}.use_dynamic_bsz", "bool", False, "trainer.use_dynamic_bsz", "", "use_dynamic_bsz"),
    field(
        f"{_ACTOR}.ppo_max_token_len_per_gpu",
        "count",
        16384,
        "trainer.max_token_len_per_gpu",
        "",
        "max_token_len_per_gpu",
    ),
    field(
        f"{_ACTOR}.ulysses_sequence_parallel_size",
        "count",
        1,
        "trainer.ulysses_sequence_parallel_size",
        "",
        "ulysses_sequence_parallel_size",
    ),
    field(f"{_ACTOR}.grad_clip", "number", 1.0, "trainer.grad_clip"),
    rule(f"{_ACTOR}.use_kl_loss", "bool", False, "algorithm.kl_loss_fn", "false is none"),
    rule(f"{_ACTOR}.kl_loss_type", "text", "low_var_kl", "algorithm.kl_loss_fn"),
    rule(f"{_ACTOR}.kl_loss_coef", "number", 0.001, "algorithm.kl_loss_fn_args.kl_coef"),
    rule(f"{_ACTOR}.entropy_coeff", "number", 0, "algorithm.entropy_loss_fn_args.entropy_coef"),
    tree(f"{_ACTOR}.fsdp_config.param_offload", "bool", False, "", "param_offload"),
    tree(f"{_ACTOR}.fsdp_config.optimizer_offload", "bool", False, "", "optimizer_offload"),
    tree(f"{_REF}.fsdp_config.param_offload", "bool", False, "", "ref_param_offload"),
)
ROLLOUT: Final = (
    rule(f"{_ROLLOUT}.name", "text", None, f"{_ENGINE}.engine_type", "vllm, the default here"),
    rule(f"{_ROLLOUT}.n", "count", 1, "algorithm.repeat_times", f"{_EVAL}.repeat_times is val_kwargs.n"),
    field(f"{_ROLLOUT}.gpu_memory_utilization", "number", 0.5, f"{_ENGINE}.gpu_memory_utilization"),
    field(f"{_ROLLOUT}.temperature", "number", 1.0, "model.temperature", "a taskset may have its own"),
    field(f"{_ROLLOUT}.top_p", "number", 1.0, "model.top_p", "a taskset may have its own"),
    field(f"{_ROLLOUT}.top_k", "int", -1, "model.top_k", "a taskset may have its own"),
    rule(f"{_ROLLOUT}.tensor_model_parallel_size", "count", 2, f"{_ENGINE}.tensor_parallel_size"),
    rule(f"{_ROLLOUT}.val_kwargs.temperature", "number", 0, f"{_EVAL}.rollout_args.temperature"),
    rule(f"{_ROLLOUT}.val_kwargs.top_p", "number", 1.0, f"{_EVAL}.rollout_args.top_p"),
    rule(f"{_ROLLOUT}.val_kwargs.top_k", "int", -1, f"{_EVAL}.rollout_args.top_k"),
    rule(f"{_ROLLOUT}.val_kwargs.n", "count", 1, f"{_EVAL}.repeat_times"),
    rule(f"{_ROLLOUT}.val_kwargs.do_sample", "bool", False, f"{_EVAL}.rollout_args.temperature", "false is 0"),
    tree(f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu", "count", None, "the trainer's micro-batches are its own"),
)
CRITIC: Final = (
    rule("critic.model.path", "text", "~/models/deepseek-llm-7b-chat", "model.critic_model_path"),
    tree("critic.optim.lr", "number", 1e-5, "", "critic_lr"),
    tree("critic.optim.lr_warmup_steps_ratio", "number", 0.0, "", "critic_lr_warmup_steps_ratio"),
    tree("critic.model.use_remove_padding", "bool", True, _WITH_POLICY),
    tree("critic.model.enable_gradient_checkpointing", "bool", True, _WITH_POLICY),
    tree("critic.model.fsdp_config.param_offload", "bool", False, _WITH_POLICY),
    tree("critic.model.fsdp_config.optimizer_offload", "bool", False, _WITH_POLICY),
    tree("critic.ppo_micro_batch_size_per_gpu", "count", None, "the critic's micro-batches are the policy's"),
)
REWARD_MODEL: Final = (
    rule("reward_model.enable", "bool", False, "explorer.auxiliary_models"),
    rule("reward_model.model.path", "text", None, "explorer.auxiliary_models[0].model_path"),
    dropped("reward_model.model.use_remove_padding", _SERVED, "bool"),
    dropped("reward_model.model.fsdp_config.*", _SERVED),
    dropped("reward_model.micro_batch_size_per_gpu", _SERVED, "count"),
)
TRAINER: Final = (
    rule("trainer.logger", "texts", ["console", "wandb"], "monitor.monitor_type", "and monitor.also; not console"),
    field("trainer.project_name", "text", "verl_examples", "project"),
    field("trainer.experiment_name", "text", "gsm8k", "name"),
    rule("trainer.default_local_dir", "text", None, "checkpoint_root_dir", "files are in ROOT/PROJECT/NAME"),
    rule("trainer.n_gpus_per_node", "count", 8, "cluster.gpu_per_node", "and the shares of explorers and trainer"),
    rule("trainer.nnodes", "count", 1, "cluster.node_num", "and the shares of explorers and trainer"),
    rule("trainer.save_freq", "int", -1, "trainer.save_interval", "-1 is 0: at the end alone"),
    rule("trainer.test_freq", "int", -1, "explorer.eval_interval", "-1 leaves it out: there is one at the end"),
    field("trainer.total_epochs", "count", 30, "buffer.total_epochs"),
    rule("trainer.total_training_steps", "count", None, "buffer.total_steps", "wins over total_epochs"),
    rule("trainer.critic_warmup", "int", 0, "trainer.critic_warmup", "in steps", read=True),
    field("trainer.val_before_train", "bool", True, "explorer.eval_on_startup"),
    rule("trainer.resume_mode", "text", "auto", "continue_from_checkpoint", f"disable is false; {_FORK}"),
    rule("trainer.resume_from_path", "text", None, "continue_from_checkpoint", _FORK),
)
GUIDE: Final[tuple[VerlKey, ...]] = (*ALGORITHM, *DATA, *ACTOR, *ROLLOUT, *CRITIC, *REWARD_MODEL, *TRAINER)
"""Every key of the guide's tables and of its two examples."""
