"""Keys of veRL's older releases, and keys added by well-known projects built on veRL."""

from __future__ import annotations

from typing import Final

from rftd.daemon.config.verl.key import VerlKey, dropped, field, person, rule
from rftd.daemon.config.verl.key_groups import SPEED

_ACTOR: Final = "actor_rollout_ref.actor"
_MODEL: Final = "actor_rollout_ref.model"
_REF: Final = "actor_rollout_ref.ref"
_ROLLOUT: Final = "actor_rollout_ref.rollout"
_PER_GPU: Final = f"trainer.trainer_config.{_ACTOR}.ppo_micro_batch_size_per_gpu"
_TURNS: Final = "turns with a search engine are a workflow's: docs/agent_programs.md"

RELEASES: Final = (
    *(
        dropped(f"{section}.grad_offload", SPEED, "bool", False)
        for section in (f"{_ACTOR}.fsdp_config", f"{_REF}.fsdp_config", "critic.model.fsdp_config")
    ),
    rule(f"{_ACTOR}.ppo_micro_batch_size", "count", None, _PER_GPU, "divided by the GPUs"),
    dropped("critic.ppo_micro_batch_size", "the critic's micro-batches are the policy's", "count"),
    dropped("reward_model.micro_batch_size", "the reward model is served beside the explorers", "count"),
    rule(f"{_ACTOR}.use_token_level_loss", "bool", False, "algorithm.loss_agg_mode", "true is token-mean"),
    rule(f"{_ACTOR}.tis_imp_ratio_cap", "number", -1, "algorithm.rollout_correction", "the cap of token ratios"),
    dropped(f"{_ACTOR}.load_weight", "weights are always loaded", "bool", True),
    dropped(f"{_REF}.load_weight", "weights are always loaded", "bool", True),
    dropped(f"{_REF}.param_offload", "the reference follows the actor", "bool", False),
    dropped("critic.load_weight", "weights are always loaded", "bool", True),
    dropped("critic.kl_ctrl.*", "a critic has no KL"),
    dropped(f"{_ACTOR}.sum_pi_squared_checkpointing", SPEED, "bool", False),
    dropped(f"{_ACTOR}.policy_loss.tau_pos", "veRL reads actor.tau_pos", "number"),
    dropped(f"{_ACTOR}.policy_loss.tau_neg", "veRL reads actor.tau_neg", "number"),
    *(
        dropped(f"{_ROLLOUT}.{name}", SPEED)
        for name in (
            *("swap_space", "micro_rollout_batch_size", "enable_sleep_mode", "layer_name_map.*", "skip_rollout"),
            *("skip_dump_dir", "skip.*", "moe_tensor_parallel_size", "standalone_gpu_memory_utilization"),
            *("max_num_batched_tokens_per_gpu", "enable_memory_saver", "enable_log_prob", "async_engine"),
            *("compute_reward", "server.*", "sglang_rollout_mode"),
        )
    ),
    dropped(f"{_ROLLOUT}.model_path", "follows model.path", "text"),
    rule("reward_manager.name", "text", "naive", "default_reward_fn_type", "naive is the default here"),
    dropped("reward_manager.source", "see reward_manager.name", "text", "register"),
    person("reward_manager.module.path", "install it as a reward and name it: docs/extending.md", "text"),
    dropped("reward_manager.module.name", "see reward_manager.module.path", "text"),
    person(
        "algorithm.rollout_correction.rollout_token_veto_threshold",
        "a response is left out by algorithm.rollout_correction.rollout_rs",
        "number",
    ),
    person(
        "algorithm.rollout_correction.rollout_rs_threshold_lower",
        "write algorithm.rollout_correction.rollout_rs_threshold with both bounds",
        "number",
    ),
    dropped("trainer.debug", SPEED, "bool", False),
    dropped("trainer.worker_env.*", "a worker's environment is the daemon's, and explorer.env_vars"),
)
"""Keys that veRL has had."""
PROJECTS: Final = (
    # TinyZero and simpleRL-reason
    rule("trainer.remove_previous_ckpt", "bool", False, "trainer.max_checkpoints_to_keep", "true is 1"),
    person("trainer.remove_clip", "a policy loss without a clip is algorithm.policy_loss_fn: reinforce", "bool", False),
    # Search-R1
    *(person(f"data.{name}", _TURNS, "count") for name in ("max_start_length", "max_obs_length")),
    dropped("data.train_data_num", "null is all rows", "count"),
    dropped("data.val_data_num", "null is all rows", "count"),
    rule("data.shuffle_train_dataloader", "bool", True, "buffer.explorer_input.tasksets[i].data_selector"),
    person("max_turns", _TURNS, "count"),
    person("do_search", _TURNS, "bool"),
    person("retriever.*", _TURNS),
    rule(f"{_ROLLOUT}.n_agent", "count", 1, "algorithm.repeat_times", "times rollout.n"),
    person(f"{_ACTOR}.state_masking", "tokens that a tool has written are never trained", "bool", False),
    dropped("algorithm.state_masking.*", "tokens that a tool has written are never trained"),
    person("algorithm.no_think_rl", _TURNS, "bool", False),
    # rllm, PRIME and veRL's recipes
    rule("algorithm.mask_truncated_samples", "bool", False, "algorithm.advantage_fn_args.mask_truncated"),
    person("reward_model.prime_model.*", "PRIME's implicit rewards are not here"),
    person("algorithm.adv_params.*", "PRIME's implicit rewards are not here"),
    person("data.filter_accuracy", "algorithm.filter_groups leaves out groups of equal rewards", "bool", False),
    person("data.accuracy_lower_bound", "see data.filter_accuracy", "number", switch="data.filter_accuracy"),
    person("data.accuracy_upper_bound", "see data.filter_accuracy", "number", switch="data.filter_accuracy"),
    person("data.n_samples", "answers of one task are algorithm.repeat_times", "count"),
    person("rllm.*", "rllm's agents are workflows: docs/agent_programs.md"),
    person("trainer.spo.*", "SPO is not here"),
    person(f"{_ACTOR}.gvpo_beta", "the loss gvpo is not here", "number"),
    person(f"{_ACTOR}.num_images_in_input", "images are not read yet", "count"),
    person(f"{_ROLLOUT}.single_turn_response_length", "turns are a workflow's: docs/agent_programs.md", "count"),
    person(f"{_MODEL}.torch_dtype", "write trainer.engine_args.dtype", "text"),
    dropped("trainer.tensorboard_dir", "the monitor's folder is in monitor.monitor_args", "text"),
    dropped("trainer.rl_logging_board_dir", "every rollout is in the log: `rftd experiences`", "text"),
    field("data.min_response_length", "count", None, "model.min_response_tokens"),
)
"""Keys that veRL itself has never had."""
OLDER: Final[tuple[VerlKey, ...]] = (*RELEASES, *PROJECTS)
