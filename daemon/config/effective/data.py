"""Section `buffer` as it will act: tasks, rows, experiences, and their amounts."""

from __future__ import annotations

from typing import Any

from rftd.daemon.config.effective.arguments import acting_fields, with_defaults
from rftd.daemon.config.effective.pacing import replay_buffer
from rftd.daemon.config.resolve.rows import VARIABLE
from rftd.streams.bounds import LAST_INDEX
from rftd.streams.spec import SamplingSpec, StageSpec, TasksetSpec
from rftd.streams.stage_tasks import tasksets_of
from rftd.workers.control.selectors.registry import SELECTORS, draws
from rftd.workers.rollout.rewards.registry import REWARDS
from rftd.workers.rollout.workflows.registry import WORKFLOWS, own_reward


def buffer_section(stage: StageSpec) -> dict[str, Any]:
    """Every taskset with its workflow, reward and sampling; what is trained on; and how much of it."""
    section: dict[str, Any] = {"batch_size": stage.batch_size}
    # Where nothing is trained it is spoken of, and follows from what is explored unless it was written.
    if stage.kind != "explore" or stage.train_batch_size != stage.batch_size * stage.algorithm.repeat_times:
        section["train_batch_size"] = stage.train_batch_size
    steps = stage.total_steps
    if stage.kind == "explore" and stage.collect_groups != LAST_INDEX:
        steps = stage.collect_groups // stage.batch_size
    if steps:
        section["total_steps"] = steps
    elif stage.total_epochs:
        section["total_epochs"] = stage.total_epochs
    if stage.kind != "train":
        section["explorer_input"] = _explorer_input(stage)
    section["trainer_input"] = _trainer_input(stage)
    return section


def _explorer_input(stage: StageSpec) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if stage.serving is not None and stage.taskset is not None:
        # Its tasks are what clients ask: only how they are answered is written.
        given["taskset"] = {"rollout_args": _sampling(stage.taskset.sampling)}
    elif stage.more_tasksets:
        given["tasksets"] = [_taskset(each) for each in tasksets_of(stage)]
    elif stage.taskset is not None:
        given["taskset"] = _taskset(stage.taskset)
    given["eval_tasksets"] = [_taskset(each) for each in stage.evals]
    return given


def _taskset(spec: TasksetSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "storage_type": "queue" if spec.queue else _storage(spec),
        "path": _path(spec),
        "subset_name": spec.subset,
        "split": spec.split,
        "format": acting_fields(spec.format),
        "rollout_args": _sampling(spec.sampling),
        "default_workflow_type": spec.workflow,
        "workflow_args": with_defaults(WORKFLOWS, spec.workflow, spec.workflow_args),
        "default_reward_fn_type": spec.reward,
        "reward_fn_args": with_defaults(REWARDS, spec.reward or own_reward(spec.workflow), spec.reward_args),
        "data_selector": {
            "selector_type": spec.selector,
            "seed": spec.seed,
            "feature_keys": list(spec.feature_keys),
            "kwargs": with_defaults(SELECTORS, spec.selector, spec.selector_args) if draws(spec.selector) else {},
        },
        "repeat_times": spec.repeat_times,
        "max_retry_times": spec.max_retry_times,
        "limit_rows": spec.limit_rows,
    }


def _storage(spec: TasksetSpec) -> str:
    return "sql" if "://" in spec.path else "file"


def _path(spec: TasksetSpec) -> str | list[str] | dict[str, str] | None:
    if spec.path.startswith(VARIABLE):
        return {"env": spec.path.removeprefix(VARIABLE)}
    return list(spec.paths) if spec.more_paths else spec.path or None


def _sampling(spec: SamplingSpec) -> dict[str, Any]:
    return {
        "temperature": spec.temperature,
        "top_p": spec.top_p,
        "top_k": spec.top_k,
        "min_p": spec.min_p,
        "max_tokens": spec.max_tokens,
        "min_tokens": spec.min_tokens,
        "stop": list(spec.stop),
        "repetition_penalty": spec.repetition_penalty,
        "presence_penalty": spec.presence_penalty,
        "logit_bias": {str(token): bias for token, bias in spec.logit_bias},
        "ignore_eos": spec.ignore_eos,
        "logprobs": "processed" if spec.processed_logprobs else "raw",
    }


def _trainer_input(stage: StageSpec) -> dict[str, Any]:
    if stage.kind == "train":
        return {"experience_buffer": _rows(stage.dataset)} if stage.dataset is not None else {}
    given: dict[str, Any] = {}
    experiences: dict[str, Any] = {"storage_type": "queue", "max_read_timeout": stage.max_read_timeout_s}
    if stage.kind == "both":
        experiences |= {"capacity": stage.policy.capacity, "replay_buffer": replay_buffer(stage.policy)}
    given["experience_buffer"] = experiences
    if stage.dataset is not None:
        name = stage.algorithm.sample_strategy_args.get("sft_dataset_name", "sft_dataset")
        given["auxiliary_buffers"] = {name: {**_rows(stage.dataset), "total_epochs": stage.dataset.max_epochs or None}}
    return given


def _rows(spec: TasksetSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "storage_type": _storage(spec),
        "path": _path(spec),
        "subset_name": spec.subset,
        "split": spec.split,
        "schema_type": spec.schema,
        "format": acting_fields(spec.format),
        "limit_rows": spec.limit_rows,
    }
