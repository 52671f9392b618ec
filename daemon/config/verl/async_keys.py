"""Keys of veRL's asynchronous programs, `fully_async_main` and `one_step_off_policy`."""

from __future__ import annotations

from typing import Final

from rftd.daemon.config.verl.key import VerlKey, dropped, person, rule
from rftd.daemon.config.verl.key_groups import SPEED

_ASYNC: Final = "async_training"
_BYPASS: Final = "algorithm.rollout_correction.bypass_mode"
_DYNAMIC: Final = f"{_ASYNC}.use_dynamic_resource_scheduling"
_HALVES: Final = "explorers keep their GPUs, and the trainer keeps its own"

ASYNCHRONOUS: Final[tuple[VerlKey, ...]] = (
    rule(f"{_ASYNC}.staleness_threshold", "number", 0.1, "policy.staleness_threshold", "0 is sync_style fixed"),
    rule(f"{_ASYNC}.trigger_parameter_sync_step", "count", 4, "synchronizer.sync_interval", "times require_batches"),
    rule(f"{_ASYNC}.require_batches", "count", 1, "synchronizer.sync_interval", "mini-batches of one update"),
    rule(f"{_ASYNC}.partial_rollout", "bool", True, "synchronizer.sync_style", "false is trainer_driven"),
    rule(f"{_ASYNC}.use_rollout_log_probs", "bool", True, _BYPASS),
    rule(f"{_ASYNC}.compute_prox_log_prob", "bool", False, _BYPASS, "true is false"),
    rule("actor_rollout_ref.actor.use_rollout_log_probs", "bool", False, _BYPASS),
    dropped(f"{_ASYNC}.use_trainer_do_validate", "explorers evaluate", "bool", False),
    dropped(f"{_ASYNC}.checkpoint_engine.*", SPEED),
    dropped(f"{_ASYNC}.concurrent_samples_per_replica", SPEED, "count", 16),
    person(_DYNAMIC, _HALVES, "bool", False),
    *(
        person(f"{_ASYNC}.dynamic_schedule_{name}", _HALVES, switch=_DYNAMIC)
        for name in ("policy", "deactivate_ratio", "enable_rebalance")
    ),
    rule("rollout.nnodes", "count", 1, "explorer.rollout_model.engine_num", "the explorers' half"),
    rule("rollout.n_gpus_per_node", "count", 8, "explorer.rollout_model.engine_num", "the explorers' half"),
    dropped("rollout.n", "veRL reads actor_rollout_ref.rollout.n", "count", 4),
    rule("rollout.total_rollout_steps", "count", 100, "buffer.total_steps", "divided by the mini-batch"),
    rule("rollout.total_epochs", "count", None, "buffer.total_epochs", "veRL's older place"),
    rule("rollout.test_freq", "int", -1, "explorer.eval_interval", "times sync_interval"),
)
