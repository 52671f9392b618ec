"""Keys that veRL has and the alignment guide does not name; a name that ends with `.*` is a whole section."""

from __future__ import annotations

from typing import Final

from rftd.daemon.config.verl.key import VerlKey, dropped, field, person, rule, tree

_ACTOR: Final = "actor_rollout_ref.actor"
_MODEL: Final = "actor_rollout_ref.model"
_ROLLOUT: Final = "actor_rollout_ref.rollout"
_REF: Final = "actor_rollout_ref.ref"
_ENGINE: Final = "explorer.rollout_model"
_LOSS: Final = "algorithm.policy_loss_fn_args"
_CORRECTION: Final = "algorithm.rollout_correction"
_OPTIM: Final = "algorithm.optimizer"

_SPEED: Final = "changes speed or memory alone"
_PLUMBING: Final = "is a part of veRL's own machinery"
_KEPT: Final = "every rollout and evaluation is in the log: `rftd experiences`"
_ONE_CONTROLLER: Final = "explorers are processes of their own"
_AS_POLICY: Final = "the critic's micro-batches are the policy's"
_CHECKPOINTS: Final = "checkpoints hold all that a restart needs"
_CONTENTS: Final = ["model", "optimizer", "extra"]
_OF_CHECKPOINTS: Final = ("load_contents", "async_save", "strict", "mbridge_config")
_MEGATRON: Final = "Megatron's sizes are those of trainer.megatron"


def _wrapping(section: str) -> tuple[VerlKey, ...]:
    """The rows of one section `fsdp_config`, but for those that have an effect somewhere."""
    return (
        *(
            dropped(f"{section}.{name}", _SPEED)
            for name in (
                *("wrap_policy.*", "offload_policy", "use_orig_params", "seed", "full_determinism", "strategy"),
                *("entropy_from_logits_with_chunking", "entropy_from_logits_chunk_size", "entropy_checkpointing"),
                *("use_torch_compile", "use_no_sync_for_gradient_accumulation", "pad_to_length", "forward_only"),
                *("pad_to_length_bucket", "ulysses_sequence_parallel_size", "turbo_config.*"),
            )
        ),
        person(f"{section}.model_dtype", "write trainer.engine_args.dtype", "text", "fp32"),
        person(f"{section}.dtype", "write trainer.engine_args.dtype", "text", "bfloat16"),
        person(f"{section}.mixed_precision.*", "write trainer.engine_args.dtype"),
        person(f"{section}.qat.*", "training for low precision is not here"),
    )


ALGORITHM: Final = (
    rule("algorithm.norm_adv_by_std_in_grpo", "bool", True, "algorithm.advantage_fn_args.std_cal_level", "false: none"),
    rule("algorithm.kl_ctrl.type", "text", "fixed", "algorithm.kl_penalty_fn_args.adaptive"),
    rule("algorithm.kl_ctrl.horizon", "number", 10000, "algorithm.kl_penalty_fn_args.horizon"),
    rule("algorithm.kl_ctrl.target_kl", "number", 0.1, "algorithm.kl_penalty_fn_args.target_kl"),
    field("algorithm.rollout_correction.rollout_is", "text", None, f"{_CORRECTION}.rollout_is"),
    field("algorithm.rollout_correction.rollout_is_threshold", "any", 2.0, f"{_CORRECTION}.rollout_is_threshold"),
    field(
        "algorithm.rollout_correction.rollout_is_batch_normalize",
        "bool",
        False,
        f"{_CORRECTION}.rollout_is_batch_normalize",
    ),
    field("algorithm.rollout_correction.rollout_rs", "text", None, f"{_CORRECTION}.rollout_rs"),
    field("algorithm.rollout_correction.rollout_rs_threshold", "any", None, f"{_CORRECTION}.rollout_rs_threshold"),
    field("algorithm.rollout_correction.bypass_mode", "bool", False, f"{_CORRECTION}.bypass_mode"),
    field("algorithm.rollout_correction.loss_type", "text", "ppo_clip", f"{_CORRECTION}.loss_type"),
    person(
        "algorithm.filter_groups.enable",
        "advantage_fn_args.std_threshold: 0 leaves out groups of equal rewards",
        "bool",
        False,
    ),
    dropped("algorithm.filter_groups.metric", "see algorithm.filter_groups.enable", "text", "reward"),
    dropped("algorithm.filter_groups.max_num_gen_batches", "explorers go on until a batch is full", "int", 0),
    dropped("algorithm.filter_groups.max_inflight_gen_batches", "explorers go on until a batch is full", "int", 1),
    person("algorithm.use_pf_ppo", "rftd does not reweight a batch by pf_ppo", "bool", False),
    dropped("algorithm.pf_ppo.*", "see algorithm.use_pf_ppo"),
)
DATA: Final = (
    rule("data.train_max_samples", "int", -1, "buffer.explorer_input.tasksets[i].limit_rows", "-1 is all"),
    rule("data.val_max_samples", "int", -1, "buffer.explorer_input.eval_tasksets[i].limit_rows", "-1 is all"),
    rule("data.seed", "int", None, "buffer.explorer_input.tasksets[i].data_selector.seed"),
    field("data.trust_remote_code", "bool", False, "model.trust_remote_code"),
    person("data.gen_batch_size", "explorers take buffer.batch_size tasks in a step", "count"),
    person(
        "data.reward_fn_key", "a row names its reward by format.reward_fn_key, and a taskset by default_reward_fn_type"
    ),
    person("data.custom_cls.*", "a dataset class is written as a workflow here"),
    person("data.sampler.*", "write data_selector of the taskset"),
    person("data.apply_chat_template_kwargs", "write model.custom_chat_template"),
    person("data.apply_chat_template_kwargs.*", "write model.custom_chat_template"),
    person("data.tool_config_path", "tools are a workflow's"),
    person("data.function_tool_path", "tools are a workflow's"),
    person("data.tokenizer", "the tokenizer is that of model.model_path"),
    dropped("data.filter_overlong_prompts_workers", _SPEED, "count", 1),
    dropped("data.dataloader_num_workers", _SPEED, "int", 8),
    dropped("data.use_shm", _SPEED, "bool", False),
    dropped("data.validation_shuffle", "the order of an evaluation changes none of its numbers", "bool", False),
    dropped("data.return_raw_input_ids", _PLUMBING, "bool", False),
    dropped("data.return_full_prompt", _PLUMBING, "bool", False),
    *(
        person(f"data.{name}", "images, videos and sounds are not read yet")
        for name in (
            "image_key",
            "video_key",
            "audio_key",
            "image_patch_size",
            "return_multi_modal_inputs",
            "mm_processor_kwargs",
        )
    ),
    person("data.datagen.*", "tasks are not generated"),
    person("data.dataset_cls", "a dataset class is written as a workflow here"),
)
MODEL: Final = (
    tree(f"{_MODEL}.enable_activation_offload", "bool", False, "", "activation_offload"),
    field(f"{_MODEL}.trust_remote_code", "bool", False, "model.trust_remote_code"),
    field(f"{_MODEL}.custom_chat_template", "text", None, "model.custom_chat_template"),
    rule(f"{_MODEL}.lora_rank", "int", 0, "model.lora_configs[0].lora_rank", "0 trains the model itself"),
    rule(f"{_MODEL}.lora_alpha", "int", 16, "model.lora_configs[0].lora_alpha"),
    rule(f"{_MODEL}.target_modules", "any", "all-linear", "model.lora_configs[0].target_modules"),
    rule(f"{_MODEL}.exclude_modules", "any", None, "model.lora_configs[0].exclude_modules"),
    rule(f"{_MODEL}.lora_adapter_path", "text", None, "model.lora_configs[0].path"),
    person(f"{_MODEL}.lora.*", "veRL's adapters of Megatron: write model.lora_configs"),
    person(f"{_MODEL}.hf_config_path", "the config is that of model.model_path"),
    person(f"{_MODEL}.tokenizer_path", "the tokenizer is that of model.model_path"),
    person(f"{_MODEL}.external_lib", "code of your own is installed as a plug-in"),
    person(f"{_MODEL}.override_config", "change config.json of the model's folder"),
    person(f"{_MODEL}.override_config.*", "change config.json of the model's folder"),
    person(f"{_MODEL}.mtp.*", "heads for several tokens are not trained"),
    dropped(f"{_MODEL}.use_shm", _SPEED, "bool", False),
    dropped(f"{_MODEL}.use_liger", _SPEED, "bool", False),
    dropped(f"{_MODEL}.use_fused_kernels", _SPEED, "bool", False),
    dropped(f"{_MODEL}.fused_kernel_options.*", _SPEED),
    dropped(f"{_MODEL}.tiled_mlp.*", _SPEED),
    dropped("actor_rollout_ref.hybrid_engine", _ONE_CONTROLLER, "bool", True),
    dropped("actor_rollout_ref.nccl_timeout", _PLUMBING, "int", 600),
)
ACTOR: Final = (
    rule(f"{_ACTOR}.clip_ratio", "number", 0.2, f"{_LOSS}.clip_range"),
    rule(f"{_ACTOR}.clip_ratio_low", "number", 0.2, f"{_LOSS}.clip_range_low"),
    rule(f"{_ACTOR}.clip_ratio_high", "number", 0.2, f"{_LOSS}.clip_range_high"),
    rule(f"{_ACTOR}.clip_ratio_c", "number", 3.0, f"{_LOSS}.clip_ratio_c"),
    rule(f"{_ACTOR}.tau_pos", "number", 1.0, f"{_LOSS}.tau_pos"),
    rule(f"{_ACTOR}.tau_neg", "number", 1.05, f"{_LOSS}.tau_neg"),
    rule(f"{_ACTOR}.policy_loss.loss_mode", "text", "vanilla", "algorithm.policy_loss_fn"),
    rule(f"{_ACTOR}.policy_loss.clip_cov_ratio", "number", 0.0002, f"{_LOSS}.clip_cov_ratio"),
    rule(f"{_ACTOR}.policy_loss.clip_cov_lb", "number", 1.0, f"{_LOSS}.clip_cov_lb"),
    rule(f"{_ACTOR}.policy_loss.clip_cov_ub", "number", 5.0, f"{_LOSS}.clip_cov_ub"),
    rule(f"{_ACTOR}.policy_loss.kl_cov_ratio", "number", 0.0002, f"{_LOSS}.kl_cov_ratio"),
    rule(f"{_ACTOR}.policy_loss.ppo_kl_coef", "number", 0.1, f"{_LOSS}.ppo_kl_coef"),
    person(f"{_ACTOR}.policy_loss.dro_beta", "the loss dro is not here", "number"),
    field(f"{_ACTOR}.loss_agg_mode", "text", "token-mean", "algorithm.loss_agg_mode"),
    field(f"{_ACTOR}.loss_scale_factor", "number", None, "algorithm.loss_scale_factor"),
    rule(f"{_ACTOR}.ppo_epochs", "count", 1, "trainer.ppo_epochs", read=True),
    rule(f"{_ACTOR}.shuffle", "bool", False, "trainer.shuffle", "a batch here is one mini-batch there", read=True),
    rule(f"{_ACTOR}.strategy", "text", "fsdp", "trainer.trainer_strategy", read=True),
    field(f"{_ACTOR}.optim.betas", "any", [0.9, 0.999], f"{_OPTIM}.betas"),
    rule(f"{_ACTOR}.optim.lr_warmup_steps", "int", -1, f"{_OPTIM}.lr_warmup_steps", "times sync_interval"),
    rule(f"{_ACTOR}.optim.lr_scheduler_type", "text", "constant", f"{_OPTIM}.lr_scheduler_type"),
    rule(f"{_ACTOR}.optim.warmup_style", "text", "constant", f"{_OPTIM}.lr_scheduler_type", "veRL's older name"),
    rule(f"{_ACTOR}.optim.min_lr_ratio", "number", 0.0, f"{_OPTIM}.min_lr_ratio"),
    rule(f"{_ACTOR}.optim.optimizer", "text", "AdamW", f"{_OPTIM}.optimizer_type"),
    dropped(f"{_ACTOR}.optim.clip_grad", "actor.grad_clip is what veRL clips by", "number", 1.0),
    dropped(f"{_ACTOR}.optim.total_training_steps", "follows the length of the stage", "int", -1),
    dropped(f"{_ACTOR}.optim.optimizer_impl", "see actor.optim.optimizer", "text", "torch.optim"),
    dropped(f"{_ACTOR}.optim.zero_indexed_step", _PLUMBING, "bool", True),
    person(f"{_ACTOR}.optim.lr_warmup_init", "warm-up begins at 0", "number"),
    person(f"{_ACTOR}.optim.num_cycles", "the cosine schedule here has half a cycle", "number", 0.5),
    person(f"{_ACTOR}.optim.override_optimizer_config", "write algorithm.optimizer"),
    person(f"{_ACTOR}.optim.override_optimizer_config.*", "write algorithm.optimizer"),
    rule(
        f"{_ACTOR}.checkpoint.save_contents", "any", _CONTENTS, "trainer.save_hf_checkpoint", "hf_model in it is always"
    ),
    rule(f"{_ACTOR}.checkpoint.contents", "any", _CONTENTS, "trainer.save_hf_checkpoint", "veRL's older name"),
    *(dropped(f"{_ACTOR}.checkpoint.{name}", _CHECKPOINTS) for name in _OF_CHECKPOINTS),
    tree(f"{_ACTOR}.entropy_checkpointing", "bool", False, "", "entropy_checkpointing"),
    tree(f"{_ACTOR}.fsdp_config.fsdp_size", "int", -1, "", "fsdp_size"),
    tree(f"{_ACTOR}.fsdp_config.forward_prefetch", "bool", False, "", "forward_prefetch"),
    tree(f"{_ACTOR}.fsdp_config.reshard_after_forward", "bool", True, "", "reshard_after_forward"),
    person(f"{_ACTOR}.ppo_micro_batch_size", "deprecated in veRL: write trainer.max_token_len_per_gpu", "count"),
    tree(f"{_ACTOR}.megatron.tensor_model_parallel_size", "count", 1, "", "tensor_model_parallel_size"),
    tree(f"{_ACTOR}.megatron.sequence_parallel", "bool", True, "", "sequence_parallel"),
    person(f"{_ACTOR}.megatron.*", _MEGATRON),
    person(f"{_ACTOR}.freeze_vision_tower", "images are not read yet", "bool", False),
    person(f"{_ACTOR}.qat.*", "training for low precision is not here"),
    dropped(f"{_ACTOR}.use_torch_compile", _SPEED, "bool", True),
    dropped(f"{_ACTOR}.use_fused_kernels", _SPEED, "bool"),
    dropped(f"{_ACTOR}.use_prefix_grouper", _SPEED, "bool", False),
    dropped(f"{_ACTOR}.use_remove_padding", "see actor_rollout_ref.model.use_remove_padding", "bool"),
    dropped(f"{_ACTOR}.entropy_from_logits_with_chunking", _SPEED, "bool", False),
    dropped(f"{_ACTOR}.entropy_from_logits_chunk_size", _SPEED, "int", 2048),
    dropped(f"{_ACTOR}.pad_to_length", _SPEED),
    dropped(f"{_ACTOR}.calculate_entropy", "each step reports it", "bool", False),
    dropped(f"{_ACTOR}.calculate_sum_pi_squared", _PLUMBING, "bool", False),
    dropped(f"{_ACTOR}.rollout_n", "follows rollout.n", "int"),
    dropped(f"{_ACTOR}.data_loader_seed", "every seed follows from the experiment's", "int", 42),
    dropped(f"{_ACTOR}.profiler.*", "rftd has no profiler"),
    *_wrapping(f"{_ACTOR}.fsdp_config"),
    person(f"{_ACTOR}.router_replay.*", "experts are not replayed yet"),
)
REF: Final = (
    tree(f"{_REF}.log_prob_micro_batch_size_per_gpu", "count", None, "the trainer's micro-batches are its own"),
    tree(f"{_REF}.log_prob_use_dynamic_bsz", "bool", None, "the trainer's micro-batches are its own"),
    tree(f"{_REF}.log_prob_max_token_len_per_gpu", "count", None, "the trainer's micro-batches are its own"),
    person(f"{_REF}.model.*", "the reference is the model that the stage begins with"),
    person(f"{_REF}.router_replay.*", "experts are not replayed yet"),
    *(
        dropped(f"{_REF}.{name}", "the reference follows the actor")
        for name in (
            *("strategy", "rollout_n", "use_torch_compile", "use_fused_kernels", "log_prob_micro_batch_size"),
            *("ulysses_sequence_parallel_size", "entropy_from_logits_with_chunking", "entropy_from_logits_chunk_size"),
            *("entropy_checkpointing", "pad_to_length", "profiler.*", "megatron.*"),
            *(f"fsdp_config.{name}" for name in ("optimizer_offload", "fsdp_size", "forward_prefetch")),
            "fsdp_config.reshard_after_forward",
        )
    ),
    *_wrapping(f"{_REF}.fsdp_config"),
)
ROLLOUT: Final = (
    rule(f"{_ROLLOUT}.data_parallel_size", "count", 1, f"{_ENGINE}.data_parallel_size"),
    rule(f"{_ROLLOUT}.pipeline_model_parallel_size", "count", 1, f"{_ENGINE}.pipeline_parallel_size"),
    field(f"{_ROLLOUT}.dtype", "text", "bfloat16", f"{_ENGINE}.dtype"),
    field(f"{_ROLLOUT}.enforce_eager", "bool", False, f"{_ENGINE}.enforce_eager"),
    field(f"{_ROLLOUT}.enable_chunked_prefill", "bool", True, f"{_ENGINE}.enable_chunked_prefill"),
    field(f"{_ROLLOUT}.enable_prefix_caching", "bool", True, f"{_ENGINE}.enable_prefix_caching"),
    field(f"{_ROLLOUT}.max_num_seqs", "count", 256, f"{_ENGINE}.max_num_seqs"),
    field(f"{_ROLLOUT}.max_num_batched_tokens", "count", 8192, f"{_ENGINE}.max_num_batched_tokens"),
    field(f"{_ROLLOUT}.max_model_len", "count", None, "model.max_model_len"),
    rule(f"{_ROLLOUT}.ignore_eos", "bool", False, "buffer.explorer_input.tasksets[i].rollout_args.ignore_eos"),
    rule(f"{_ROLLOUT}.do_sample", "bool", True, "model.temperature", "false trains on greedy answers"),
    tree(f"{_ROLLOUT}.log_prob_use_dynamic_bsz", "bool", None, "the trainer's micro-batches are its own"),
    tree(f"{_ROLLOUT}.log_prob_max_token_len_per_gpu", "count", None, "the trainer's micro-batches are its own"),
    person(f"{_ROLLOUT}.expert_parallel_size", "write explorer.rollout_model.enable_expert_parallel", "count", 1),
    person(f"{_ROLLOUT}.multi_turn.*", "turns and tools are a workflow's: docs/agent_programs.md"),
    person(f"{_ROLLOUT}.agent.*", "an agent loop is written as a workflow: docs/agent_programs.md"),
    person(f"{_ROLLOUT}.engine_kwargs", "write explorer.rollout_model.extra_engine_args"),
    person(f"{_ROLLOUT}.engine_kwargs.*", "write explorer.rollout_model.extra_engine_args"),
    person(f"{_ROLLOUT}.quantization", "write explorer.rollout_model.extra_engine_args"),
    person(f"{_ROLLOUT}.quantization_config_file", "write explorer.rollout_model.extra_engine_args"),
    person(f"{_ROLLOUT}.enable_rollout_routing_replay", "experts are not replayed yet", "bool", False),
    dropped(f"{_ROLLOUT}.mode", _ONE_CONTROLLER, "text", "async"),
    dropped(f"{_ROLLOUT}.prompt_length", "follows data.max_prompt_length", "count"),
    dropped(f"{_ROLLOUT}.response_length", "follows data.max_response_length", "count"),
    dropped(f"{_ROLLOUT}.seed", "rollouts are drawn by the experiment's seed", "int", 42),
    dropped(
        f"{_ROLLOUT}.calculate_log_probs", "the log-probability of each sampled token is always kept", "bool", True
    ),
    dropped(
        f"{_ROLLOUT}.logprobs_mode", "the loss takes those of the whole distribution", "text", "processed_logprobs"
    ),
    *(
        dropped(f"{_ROLLOUT}.{name}", _SPEED)
        for name in (
            *("free_cache_engine", "load_format", "layered_summon", "cudagraph_capture_sizes", "disable_log_stats"),
            *(
                "multi_stage_wake_up",
                "skip_tokenizer_init",
                "scheduling_policy",
                "full_determinism",
                "over_sample_rate",
            ),
            *("update_weights_bucket_megabytes", "log_prob_micro_batch_size", "nnodes", "n_gpus_per_node"),
            *("moe_load_balance_metrics_interval", "router_config_path", "mtp", "qat", "use_fire_sampling"),
            *("checkpoint_engine.*", "trace.*", "profiler.*", "prometheus.*", "disaggregation.*", "limit_images"),
        )
    ),
)
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
    dropped("critic.optim.zero_indexed_step", _PLUMBING, "bool", True),
    rule("critic.strategy", "text", "fsdp", "trainer.trainer_strategy", "as the policy's", read=True),
    tree("critic.use_dynamic_bsz", "bool", None, _AS_POLICY),
    tree("critic.ppo_max_token_len_per_gpu", "count", 32768, _AS_POLICY),
    tree("critic.forward_max_token_len_per_gpu", "count", None, _AS_POLICY),
    tree("critic.forward_micro_batch_size_per_gpu", "count", None, _AS_POLICY),
    tree("critic.ulysses_sequence_parallel_size", "count", 1, _AS_POLICY),
    person("critic.ppo_micro_batch_size", "deprecated in veRL: write ppo_micro_batch_size_per_gpu", "count"),
    person("critic.loss_agg_mode", "the value loss is the mean over tokens", "text", "token-mean"),
    person("critic.loss_scale_factor", "the value loss is the mean over tokens", "number"),
    person("critic.megatron.*", _MEGATRON),
    person("critic.model.tokenizer_path", "the tokenizer is that of model.model_path"),
    person("critic.model.hf_config_path", "the config is that of the critic's folder"),
    person("critic.model.external_lib", "code of your own is installed as a plug-in"),
    person("critic.model.override_config", "change config.json of the critic's folder"),
    person("critic.model.override_config.*", "change config.json of the critic's folder"),
    person("critic.model.lora_rank", "a critic is trained whole", "int", 0),
    person("critic.model.lora.*", "a critic is trained whole"),
    person("critic.model.mtp.*", "heads for several tokens are not trained"),
    field("critic.model.trust_remote_code", "bool", False, "model.trust_remote_code"),
    *(
        dropped(f"critic.model.{name}", "a critic is trained whole")
        for name in ("lora_alpha", "target_modules", "exclude_modules", "lora_adapter_path")
    ),
    *(
        dropped(f"critic.model.{name}", _SPEED)
        for name in (
            *("enable_activation_offload", "use_shm", "use_liger", "use_fused_kernels", "fused_kernel_options.*"),
            *("tiled_mlp.*", "custom_chat_template", "fsdp_config.reshard_after_forward", "fsdp_config.fsdp_size"),
            "fsdp_config.forward_prefetch",
        )
    ),
    *_wrapping("critic.model.fsdp_config"),
    *(dropped(f"critic.checkpoint.{name}", _CHECKPOINTS) for name in ("save_contents", "contents", *_OF_CHECKPOINTS)),
    dropped("critic.forward_micro_batch_size", _AS_POLICY),
    dropped("critic.rollout_n", "follows rollout.n", "int"),
    dropped("critic.data_loader_seed", "every seed follows from the experiment's", "int", 42),
    dropped("critic.nccl_timeout", _PLUMBING, "int", 600),
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
    person(
        "custom_reward_function.*", "install it as a reward and name it as default_reward_fn_type: docs/extending.md"
    ),
    person(
        "reward.custom_reward_function.*",
        "install it as a reward and name it as default_reward_fn_type: docs/extending.md",
    ),
    person(
        "reward_model.overlong_buffer.*", "advantage_fn_args: max_response_tokens, overlong_buffer, overlong_penalty"
    ),
    person("reward_model.reward_kwargs.*", "write reward_fn_args of the taskset"),
    person("reward.reward_kwargs.*", "write reward_fn_args of the taskset"),
    person("sandbox_fusion.*", "a reward that runs code is installed as a plug-in: docs/extending.md"),
    person("reward.sandbox_fusion.*", "a reward that runs code is installed as a plug-in: docs/extending.md"),
    person("reward_model.sandbox_fusion.*", "a reward that runs code is installed as a plug-in: docs/extending.md"),
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
    dropped("trainer.ray_wait_register_center_timeout", _PLUMBING, "int", 300),
    dropped("trainer.device", "each worker is given its device", "text", "cuda"),
    dropped("trainer.use_legacy_worker_impl", _PLUMBING),
    dropped("trainer.use_v1", _PLUMBING, "bool", True),
    person("trainer.v1.*", "write synchronizer.sync_style"),
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
    dropped("model_engine", _PLUMBING, "text", "dp"),
)
OTHERS: Final[tuple[VerlKey, ...]] = (*(*ALGORITHM, *DATA, *MODEL, *ACTOR, *REF, *ROLLOUT, *CRITIC, *REWARD, *TRAINER),)
"""In this order: an earlier section wins over a later one that it lies in."""
