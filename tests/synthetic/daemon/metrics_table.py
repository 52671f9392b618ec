"""The metrics that operators were promised: name, kind and labels of each. What else there is may change freely."""

from __future__ import annotations

from typing import Final

_ROWS: Final = """
rftd_build_info gauge version,commit
rftd_experiment_state gauge experiment,state
rftd_experiment_heartbeat_timestamp_seconds gauge experiment,role
rftd_experiment_last_progress_timestamp_seconds gauge experiment,role
rftd_rollouts_total counter experiment,taskset,outcome
rftd_rollout_duration_seconds histogram experiment,taskset
rftd_rollout_reward histogram experiment,taskset
rftd_rollout_tokens_total counter experiment,kind
rftd_rollout_turns histogram experiment,taskset
rftd_group_zero_variance_total counter experiment
rftd_experience_staleness_versions histogram experiment
rftd_experience_age_seconds histogram experiment
rftd_experiences_total counter experiment,stage,outcome
rftd_buffer_experiences gauge experiment,buffer,priority
rftd_buffer_capacity_experiences gauge experiment,buffer
rftd_stream_lag_records gauge stream,consumer_group
rftd_stream_produced_records_total counter stream
rftd_stream_consumed_records_total counter stream,consumer_group
rftd_stream_dead_letters_total counter stream,consumer_group,reason
rftd_stream_handler_duration_seconds histogram stream,consumer_group
rftd_stream_duplicates_total counter stream,consumer_group
rftd_stream_void_records_total counter stream,cause
rftd_projection_lag_events gauge projection
rftd_projection_rebuild_duration_seconds gauge projection
rftd_weight_version gauge experiment,holder
rftd_weight_sync_duration_seconds summary experiment,method,phase
rftd_weight_sync_failures_total counter experiment,method,reason
rftd_weight_sync_bytes_total counter experiment,method
rftd_train_step gauge experiment
rftd_train_steps_total counter experiment
rftd_train_step_duration_seconds histogram experiment
rftd_train_tokens_total counter experiment
rftd_role_state_seconds_total counter experiment,role,state
rftd_train_loss gauge experiment,loss
rftd_train_kl_nats gauge experiment,ref
rftd_train_entropy_nats gauge experiment
rftd_train_clip_ratio gauge experiment,side
rftd_train_grad_norm gauge experiment
rftd_train_nonfinite_steps_total counter experiment
rftd_eval_score gauge experiment,evalset,metric
rftd_checkpoint_duration_seconds histogram experiment
rftd_checkpoint_last_success_timestamp_seconds gauge experiment
rftd_accelerator_seconds_total counter experiment,role,accelerator
rftd_cost_usd_total counter experiment,role
"""

PROMISED: Final = {
    name: (kind, frozenset(labels.split(",")))
    for name, kind, labels in (row.split() for row in _ROWS.strip().splitlines())
}
"""Kind and labels by name. Of phases of weight syncs there is a summary: buckets would be a third of all series."""
