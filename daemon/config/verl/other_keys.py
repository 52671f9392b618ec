"""Keys that veRL has and the alignment guide does not name; a name that ends with `.*` is a whole section."""

from __future__ import annotations

from typing import Final

from rftd.daemon.config.verl.key import VerlKey, dropped, field, person, rule, tree
from rftd.daemon.config.verl.key_groups import (
    CHECKPOINTS,
    OF_CHECKPOINTS,
    PLUMBING,
    SPEED,
    replayed,
    switched,
    wrapping,
)

_ACTOR: Final = "actor_rollout_ref.actor"
_MODEL: Final = "actor_rollout_ref.model"
_ROLLOUT: Final = "actor_rollout_ref.rollout"
_REF: Final = "actor_rollout_ref.ref"
_ENGINE: Final = "explorer.rollout_model"
_LOSS: Final = "algorithm.policy_loss_fn_args"
_CORRECTION: Final = "algorithm.rollout_correction"
_OPTIM: Final = "algorithm.optimizer"

_LOOP: Final = "an agent loop is written as a workflow: docs/agent_programs.md"
_ONE_CONTROLLER: Final = "explorers are processes of their own"
_MEDIA: Final = "images, videos and sounds are not read yet"
_CONTENTS: Final = ["model", "optimizer", "extra"]


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
    rule(
        "algorithm.filter_groups.enable",
        "bool",
        False,
        "algorithm.advantage_fn_args.std_threshold",
        "0 leaves out groups of equal rewards",
    ),
    rule("algorithm.gdpo_reward_keys", "any", None, "algorithm.advantage_fn_args.weights", "1 for each part"),
    rule("algorithm.gdpo_reward_weights", "any", None, "algorithm.advantage_fn_args.weights", "one for each key"),
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
    dropped("data.gen_batch_size", "explorers draw tasks until a batch is full", "count"),
    person(
        "data.reward_fn_key",
        "a row names its reward by format.reward_fn_key, and a taskset by default_reward_fn_type",
        "text",
        "data_source",
    ),
    person("data.custom_cls.*", "a dataset class is written as a workflow here"),
    person("data.sampler.*", "write data_selector of the taskset"),
    person("data.apply_chat_template_kwargs", "write model.custom_chat_template"),
    person("data.apply_chat_template_kwargs.*", "write model.custom_chat_template"),
    person("data.tool_config_path", "tools are a workflow's"),
    person("data.function_tool_path", "tools are a workflow's"),
    person("data.tokenizer", "the tokenizer is that of model.model_path"),
    dropped("data.filter_overlong_prompts_workers", SPEED, "count", 1),
    dropped("data.dataloader_num_workers", SPEED, "int", 8),
    dropped("data.use_shm", SPEED, "bool", False),
    dropped("data.validation_shuffle", "the order of an evaluation changes none of its numbers", "bool", False),
    dropped("data.return_raw_input_ids", PLUMBING, "bool", False),
    dropped("data.return_full_prompt", PLUMBING, "bool", False),
    person("data.image_key", _MEDIA, "any", "images"),
    person("data.video_key", _MEDIA, "text", "videos"),
    person("data.audio_key", _MEDIA, "text", "audios"),
    dropped("data.image_patch_size", "see data.image_key", "count", 14),
    dropped("data.return_multi_modal_inputs", "see data.image_key", "bool", True),
    person("data.mm_processor_kwargs", _MEDIA),
    person("data.mm_processor_kwargs.*", _MEDIA),
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
    person(f"{_MODEL}.lora.rank", "veRL's adapters of Megatron: write model.lora_configs", "int", 0),
    person(f"{_MODEL}.lora.*", "veRL's adapters of Megatron: write model.lora_configs", switch=f"{_MODEL}.lora.rank"),
    person(f"{_MODEL}.hf_config_path", "the config is that of model.model_path"),
    person(f"{_MODEL}.tokenizer_path", "the tokenizer is that of model.model_path"),
    person(f"{_MODEL}.external_lib", "code of your own is installed as a plug-in"),
    person(f"{_MODEL}.override_config", "change config.json of the model's folder"),
    person(f"{_MODEL}.override_config.*", "change config.json of the model's folder"),
    *switched(f"{_MODEL}.mtp", "heads for several tokens are not trained"),
    dropped(f"{_MODEL}.use_shm", SPEED, "bool", False),
    dropped(f"{_MODEL}.use_liger", SPEED, "bool", False),
    dropped(f"{_MODEL}.use_fused_kernels", SPEED, "bool", False),
    dropped(f"{_MODEL}.fused_kernel_options.*", SPEED),
    dropped(f"{_MODEL}.tiled_mlp.*", SPEED),
    dropped("actor_rollout_ref.hybrid_engine", _ONE_CONTROLLER, "bool", True),
    dropped("actor_rollout_ref.nccl_timeout", PLUMBING, "int", 600),
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
    dropped(f"{_ACTOR}.optim.zero_indexed_step", PLUMBING, "bool", True),
    person(f"{_ACTOR}.optim.lr_warmup_init", "warm-up begins at 0", "number"),
    person(f"{_ACTOR}.optim.num_cycles", "the cosine schedule here has half a cycle", "number", 0.5),
    person(f"{_ACTOR}.optim.override_optimizer_config", "write algorithm.optimizer"),
    person(f"{_ACTOR}.optim.override_optimizer_config.*", "write algorithm.optimizer"),
    rule(
        f"{_ACTOR}.checkpoint.save_contents", "any", _CONTENTS, "trainer.save_hf_checkpoint", "hf_model in it is always"
    ),
    rule(f"{_ACTOR}.checkpoint.contents", "any", _CONTENTS, "trainer.save_hf_checkpoint", "veRL's older name"),
    *(dropped(f"{_ACTOR}.checkpoint.{name}", CHECKPOINTS) for name in OF_CHECKPOINTS),
    tree(f"{_ACTOR}.entropy_checkpointing", "bool", False, "", "entropy_checkpointing"),
    tree(f"{_ACTOR}.fsdp_config.fsdp_size", "int", -1, "", "fsdp_size"),
    tree(f"{_ACTOR}.fsdp_config.forward_prefetch", "bool", False, "", "forward_prefetch"),
    tree(f"{_ACTOR}.fsdp_config.reshard_after_forward", "bool", True, "", "reshard_after_forward"),
    tree(f"{_ACTOR}.megatron.tensor_model_parallel_size", "count", 1, "", "tensor_model_parallel_size"),
    tree(f"{_ACTOR}.megatron.sequence_parallel", "bool", True, "", "sequence_parallel"),
    person(f"{_ACTOR}.freeze_vision_tower", "images are not read yet", "bool", False),
    *switched(f"{_ACTOR}.qat", "training for low precision is not here"),
    dropped(f"{_ACTOR}.use_torch_compile", SPEED, "bool", True),
    dropped(f"{_ACTOR}.use_fused_kernels", SPEED, "bool"),
    dropped(f"{_ACTOR}.use_prefix_grouper", SPEED, "bool", False),
    dropped(f"{_ACTOR}.use_remove_padding", "see actor_rollout_ref.model.use_remove_padding", "bool"),
    dropped(f"{_ACTOR}.entropy_from_logits_with_chunking", SPEED, "bool", False),
    dropped(f"{_ACTOR}.entropy_from_logits_chunk_size", SPEED, "int", 2048),
    dropped(f"{_ACTOR}.pad_to_length", SPEED),
    dropped(f"{_ACTOR}.calculate_entropy", "each step reports it", "bool", False),
    dropped(f"{_ACTOR}.calculate_sum_pi_squared", PLUMBING, "bool", False),
    dropped(f"{_ACTOR}.rollout_n", "follows rollout.n", "int"),
    dropped(f"{_ACTOR}.data_loader_seed", "every seed follows from the experiment's", "int", 42),
    dropped(f"{_ACTOR}.profiler.*", "rftd has no profiler"),
    *wrapping(f"{_ACTOR}.fsdp_config"),
    *replayed(_ACTOR),
)
REF: Final = (
    tree(f"{_REF}.log_prob_micro_batch_size_per_gpu", "count", None, "the trainer's micro-batches are its own"),
    tree(f"{_REF}.log_prob_use_dynamic_bsz", "bool", None, "the trainer's micro-batches are its own"),
    tree(f"{_REF}.log_prob_max_token_len_per_gpu", "count", None, "the trainer's micro-batches are its own"),
    person(f"{_REF}.model.*", "the reference is the model that the stage begins with"),
    *replayed(_REF),
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
    *wrapping(f"{_REF}.fsdp_config"),
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
    *switched(f"{_ROLLOUT}.multi_turn", "turns and tools are a workflow's: docs/agent_programs.md"),
    dropped(f"{_ROLLOUT}.agent.num_workers", _ONE_CONTROLLER, "int", 8),
    person(f"{_ROLLOUT}.agent.default_agent_loop", _LOOP, "text", "single_turn_agent"),
    person(f"{_ROLLOUT}.agent.*", _LOOP),
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
        dropped(f"{_ROLLOUT}.{name}", SPEED)
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
OTHERS: Final[tuple[VerlKey, ...]] = (*ALGORITHM, *DATA, *MODEL, *ACTOR, *REF, *ROLLOUT)
"""In this order: an earlier section wins over a later one that it lies in."""
