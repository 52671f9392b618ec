"""`ineffective_fields` finds fields written without effect in their stage, by one table of conditions and reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.resolve.bench import BENCH, answers_by_service
from rftd.daemon.config.resolve.rows import EXPERIENCE_BUFFER_FIELDS, EXPERIENCES_ONLY_REASON, NO_FORMAT_REASON
from rftd.daemon.config.resolve.serving import SERVE
from rftd.daemon.config.resolve.stages import StageConfig
from rftd.daemon.config.resolve.tinker import TINKER
from rftd.daemon.config.resolve.trainer import fields_of
from rftd.daemon.config.schema.algorithm import RolloutCorrection
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import written_fields
from rftd.streams.spec.spec import StageSpec
from rftd.workers.datasets.recorded import RECORDED
from rftd.workers.learning.losses.registry import POLICY_LOSSES

Condition: TypeAlias = Callable[[Experiment, StageSpec], bool]
"""A function of a resolved stage, True if the rule's fields have no effect in it."""
_SUM_NORM_AGGREGATION: Final = "seq-mean-token-sum-norm"
"""Aggregation that uses `loss_scale_factor`."""


@dataclass(frozen=True, slots=True)
class IneffectiveRule:
    """Fields, or complete sections, that have no effect in stages for which `holds` is True."""

    places: tuple[FieldPath, ...]
    """Paths of the fields or sections."""
    holds: Condition
    """Function that is True for stages in which the fields have no effect."""
    why: str
    """The reason; `{untrained}` stands for the setting disabling training, `{trainer}` for the training engine."""
    default_too: bool = False
    """True to warn even of a value equal to the default, because another field sets a different one."""


def _paths_in(section: str, *names: str) -> tuple[FieldPath, ...]:
    """Returns the paths of fields of one section; without names, of the section."""
    above = tuple(section.split(".")) if section else ()
    return tuple((*above, *name.split(".")) for name in names) or (above,)


def _trains_rows(_experiment: Experiment, stage: StageSpec) -> bool:
    """True for a stage that trains on rows without rollouts."""
    return stage.kind == "train"


def _explores(_experiment: Experiment, stage: StageSpec) -> bool:
    """True for a stage with rollouts."""
    return stage.kind != "train"


def _trains_nothing(_experiment: Experiment, stage: StageSpec) -> bool:
    """True for a stage without training."""
    return stage.kind == "explore"


def _measures(experiment: Experiment, _stage: StageSpec) -> bool:
    """True for mode bench."""
    return experiment.mode == BENCH


def _serves(experiment: Experiment, _stage: StageSpec) -> bool:
    """True for mode serve."""
    return experiment.mode == SERVE


def _needs_no_norm(_experiment: Experiment, stage: StageSpec) -> bool:
    """True unless the losses may be aggregated by a norm."""
    algorithm = stage.algorithm
    ours = POLICY_LOSSES.builtin(algorithm.policy_loss)
    return ours and _SUM_NORM_AGGREGATION not in (algorithm.loss_agg_mode, *algorithm.policy_loss_args.values())


def _needs_no_loss_type(experiment: Experiment, _stage: StageSpec) -> bool:
    """True unless the loss type of the bypass mode is used."""
    section = experiment.algorithm.rollout_correction or RolloutCorrection()
    return not section.bypass_mode or section.old_logprobs is not None


def _each_names(experiment: Experiment, field: str, *, held_out: bool) -> bool:
    """True if every taskset entitled to a default sets the field itself."""
    tasks = experiment.buffer.explorer_input
    training = () if experiment.mode in (BENCH, SERVE) else (tasks.taskset, *tasks.tasksets)
    tasksets = [taskset for taskset in (*training, *(tasks.eval_tasksets if held_out else ())) if taskset is not None]
    return all(getattr(taskset, field) for taskset in tasksets)


def _needs_no_workflow(experiment: Experiment, _stage: StageSpec) -> bool:
    """True if every taskset names its workflow."""
    # Held-out tasksets may have a separate default, taking precedence.
    has_eval_default = bool(experiment.buffer.explorer_input.default_eval_workflow_type)
    return _each_names(experiment, "default_workflow_type", held_out=not has_eval_default)


_TASKSET: Final = "buffer.explorer_input.taskset"
"""Section of the taskset."""
_BUFFER: Final = "buffer.trainer_input.experience_buffer"
"""Section of the experience buffer."""
_CORRECTION: Final = "algorithm.rollout_correction"
"""Section of the correction."""
_ROWLESS: Final = "experiences come from explorers, not from a dataset"
"""Reason for fields of rows in stages with experiences."""
_UNTRAINED: Final = "nothing is trained with {untrained}"
"""Reason for fields of training in stages without training."""
_CLIENT_REQUESTS_REASON: Final = "with mode serve, tasks are clients' requests"
"""Reason for fields of tasks in mode serve."""
_VERL_ONLY_REASON: Final = "only used by verl, and {trainer} trains"
"""Reason for verl's fields with another engine."""

RULES: Final = (
    # Training on rows without rollouts.
    IneffectiveRule(
        _paths_in("", "explorer", "synchronizer", "policy", "cluster", "buffer.explorer_input"),
        _trains_rows,
        "the stage trains on rows, without explorers",
    ),
    IneffectiveRule(
        _paths_in(
            "model", "temperature", "top_p", "top_k", "repetition_penalty", "min_response_tokens", "external_model"
        ),
        _trains_rows,
        "the stage trains on rows, without explorers",
    ),
    IneffectiveRule(_paths_in(_BUFFER, *EXPERIENCE_BUFFER_FIELDS), _trains_rows, EXPERIENCES_ONLY_REASON),
    IneffectiveRule(
        _paths_in(_BUFFER, "format"),
        lambda _given, stage: stage.kind == "train" and stage.dataset is not None and stage.dataset.schema == RECORDED,
        NO_FORMAT_REASON,
    ),
    IneffectiveRule(
        _paths_in("buffer.trainer_input", "auxiliary_buffers"),
        _trains_rows,
        "only the rows of experience_buffer are trained on",
    ),
    # Experiences made by explorers.
    IneffectiveRule(_paths_in(_BUFFER, "path"), _explores, "the log stores every experience"),
    IneffectiveRule(_paths_in(_BUFFER, "name", "split", "subset_name", "format", "limit_rows"), _explores, _ROWLESS),
    IneffectiveRule(
        _paths_in(_BUFFER, "schema_type"),
        lambda experiment, stage: (
            stage.kind != "train" and experiment.buffer.trainer_input.experience_buffer.schema_type != "experience"
        ),
        _ROWLESS,
    ),
    # Modes without training, and the mode with tasks from clients.
    IneffectiveRule(_paths_in("", "algorithm", "synchronizer", "buffer.trainer_input"), _measures, _UNTRAINED),
    IneffectiveRule(
        _paths_in("buffer", "batch_size", "total_epochs", "total_steps"), _measures, "mode bench answers whole tasksets"
    ),
    IneffectiveRule(
        _paths_in("buffer.explorer_input", "taskset", "tasksets"), _measures, "mode bench answers only eval_tasksets"
    ),
    IneffectiveRule(
        _paths_in("explorer", "eval_interval", "over_rollout", "straggler_reissue", "max_inflight_batches"),
        _measures,
        "mode bench answers each task of eval_tasksets once, and waits for it",
    ),
    IneffectiveRule(
        _paths_in("explorer", "bench_on_latest_checkpoint"),
        lambda experiment, _stage: experiment.mode != BENCH,
        "only mode bench measures checkpoints",
    ),
    IneffectiveRule(
        _paths_in("explorer", "bench_on_latest_checkpoint", "eval_on_startup"),
        lambda experiment, _stage: experiment.mode == BENCH and answers_by_service(experiment),
        "a service answers, and has no checkpoints",
    ),
    IneffectiveRule(
        _paths_in("trainer"),
        lambda experiment, _stage: experiment.mode == BENCH and answers_by_service(experiment),
        "nothing is trained with mode bench, and a service answers",
    ),
    IneffectiveRule(
        _paths_in(
            "trainer", "save_interval", "total_steps", "save_hf_checkpoint", "grad_clip", "max_checkpoints_to_keep"
        ),
        _trains_nothing,
        _UNTRAINED,
    ),
    IneffectiveRule(
        _paths_in("trainer", "ppo_epochs", "ppo_mini_batch_size", "shuffle", "max_nonfinite_steps", "max_idle_steps"),
        _trains_nothing,
        _UNTRAINED,
    ),
    IneffectiveRule(
        _paths_in("", "policy", "algorithm.optimizer", "buffer.train_batch_size"), _trains_nothing, _UNTRAINED
    ),
    IneffectiveRule(
        _paths_in(_TASKSET, "path", "name", "subset_name", "split", "limit_rows", "storage_type", "max_retry_times"),
        _serves,
        _CLIENT_REQUESTS_REASON,
    ),
    IneffectiveRule(
        _paths_in(
            _TASKSET,
            *("format", "default_workflow_type", "workflow_args", "data_selector"),
            *("algorithm_type", "advantage_fn_args"),
        ),
        _serves,
        _CLIENT_REQUESTS_REASON,
    ),
    IneffectiveRule(
        (
            *_paths_in(_TASKSET, "default_reward_fn_type", "reward_fn_args"),
            *_paths_in("buffer.explorer_input", "tasksets"),
        ),
        _serves,
        _CLIENT_REQUESTS_REASON,
    ),
    IneffectiveRule(
        _paths_in("explorer", "proxy_port", "listen_address", "min_running_model_num"),
        lambda experiment, _stage: experiment.mode != SERVE,
        "only mode serve answers clients",
    ),
    # A disabled feature.
    IneffectiveRule(
        _paths_in("model.tinker", "base_model", "rank", "seed", "train_mlp", "train_attn", "train_unembed", "base_url"),
        lambda experiment, _stage: not experiment.model.tinker.enable,
        "model.tinker.enable is false",
    ),
    IneffectiveRule(
        _paths_in("model.external_model", "base_url_env", "api_key_env", "model_name"),
        lambda experiment, _stage: not experiment.model.external_model.enable,
        "model.external_model.enable is false",
    ),
    IneffectiveRule(
        _paths_in("explorer.dynamic_timeout", "ratio", "warmup_min_steps"),
        lambda experiment, _stage: not experiment.explorer.dynamic_timeout.enable,
        "explorer.dynamic_timeout.enable is false",
    ),
    IneffectiveRule(
        _paths_in("explorer.straggler_reissue", "ratio"),
        lambda experiment, _stage: not experiment.explorer.straggler_reissue.enable,
        "explorer.straggler_reissue.enable is false",
    ),
    IneffectiveRule(
        _paths_in("explorer.over_rollout", "wait_after_min", "return_partial_tasks"),
        lambda experiment, _stage: not experiment.explorer.over_rollout.ratio,
        "explorer.over_rollout.ratio is 0",
    ),
    # Another field taking precedence.
    IneffectiveRule(
        _paths_in("trainer", "trainer_type"),
        lambda experiment, _stage: experiment.model.tinker.enable and experiment.trainer.trainer_type != TINKER,
        "model.tinker.enable is true: Tinker trains",
    ),
    IneffectiveRule(
        _paths_in("explorer.rollout_model", "engine_type"),
        lambda experiment, _stage: (
            experiment.model.tinker.enable and experiment.explorer.rollout_model.engine_type != TINKER
        ),
        "model.tinker.enable is true: Tinker generates",
    ),
    IneffectiveRule(
        _paths_in("synchronizer", "explorer_sync_interval", "sync_offset"),
        lambda experiment, stage: stage.synchronizer.sync_style == "fully_async" and experiment.mode != SERVE,
        "fully_async explorers never stop",
    ),
    IneffectiveRule(
        _paths_in("synchronizer", "trainer_sync_interval"),
        lambda _experiment, stage: stage.synchronizer.sync_style == "explorer_driven",
        "with explorer_driven, explorers request weights",
    ),
    IneffectiveRule(
        _paths_in("synchronizer", "memory_dir"),
        lambda _experiment, stage: stage.synchronizer.sync_method in ("checkpoint", "nccl", "service"),
        "only used with sync_method memory",
    ),
    IneffectiveRule(
        _paths_in("explorer", "max_inflight_batches"),
        lambda experiment, stage: stage.synchronizer.sync_style == "fixed" or experiment.deterministic,
        "explorers wait for scheduled weights; only used with the other styles",
    ),
    IneffectiveRule(
        (
            *_paths_in("explorer", "eval_interval", "eval_on_startup"),
            *_paths_in("buffer.explorer_input", "default_eval_workflow_type"),
        ),
        lambda _experiment, stage: stage.kind != "train" and not stage.evals,
        "there are no eval_tasksets",
    ),
    IneffectiveRule(
        _paths_in("buffer.explorer_input", "default_eval_workflow_type"),
        lambda experiment, _stage: all(
            taskset.default_workflow_type for taskset in experiment.buffer.explorer_input.eval_tasksets
        ),
        "each of eval_tasksets sets it",
    ),
    IneffectiveRule(
        _paths_in("buffer.explorer_input", "default_workflow_type", "default_reward_fn_type"),
        lambda experiment, stage: experiment.mode == SERVE and not stage.evals,
        _CLIENT_REQUESTS_REASON,
    ),
    IneffectiveRule(
        _paths_in("buffer.explorer_input", "default_workflow_type"), _needs_no_workflow, "each taskset sets it"
    ),
    IneffectiveRule(
        _paths_in("buffer.explorer_input", "default_reward_fn_type"),
        lambda experiment, _stage: _each_names(experiment, "default_reward_fn_type", held_out=True),
        "each taskset sets it",
    ),
    IneffectiveRule(
        _paths_in("cluster", "node_num"),
        lambda experiment, _stage: not experiment.cluster.gpu_per_node,
        "only used together with cluster.gpu_per_node",
    ),
    IneffectiveRule(
        _paths_in("cluster", "gpu_per_node"),
        lambda experiment, _stage: not experiment.cluster.node_num,
        "only used together with cluster.node_num",
    ),
    # The optimizer and the loss.
    IneffectiveRule(
        _paths_in("algorithm.optimizer", "min_lr_ratio"),
        lambda _experiment, stage: stage.algorithm.optimizer.lr_scheduler_type == "constant",
        "lr_scheduler_type is constant",
    ),
    IneffectiveRule(
        _paths_in("algorithm.optimizer", "betas", "eps"),
        lambda _experiment, stage: stage.algorithm.optimizer.optimizer_type == "sgd",
        "only used by Adam, and optimizer_type is sgd",
    ),
    IneffectiveRule(
        _paths_in("algorithm.optimizer", "lr_warmup_steps_ratio"),
        lambda experiment, _stage: experiment.algorithm.optimizer.lr_warmup_steps >= 0,
        "lr_warmup_steps is set",
    ),
    IneffectiveRule(
        _paths_in("algorithm.optimizer", "clip_grad"),
        lambda experiment, _stage: (
            "grad_clip" in experiment.trainer.model_fields_set
            and experiment.algorithm.optimizer.clip_grad != experiment.trainer.grad_clip
        ),
        "trainer.grad_clip is set",
        default_too=True,
    ),
    IneffectiveRule(
        _paths_in(_CORRECTION, "rollout_is_threshold", "rollout_is_batch_normalize"),
        lambda experiment, _stage: not (experiment.algorithm.rollout_correction or RolloutCorrection()).rollout_is,
        "rollout_is is not set",
    ),
    IneffectiveRule(
        _paths_in(_CORRECTION, "rollout_rs_threshold"),
        lambda experiment, _stage: not (experiment.algorithm.rollout_correction or RolloutCorrection()).rollout_rs,
        "rollout_rs is not set",
    ),
    IneffectiveRule(_paths_in(_CORRECTION, "loss_type"), _needs_no_loss_type, "only used with bypass_mode: true"),
    IneffectiveRule(
        _paths_in("algorithm", "loss_scale_factor"),
        _needs_no_norm,
        f"only used with loss_agg_mode {_SUM_NORM_AGGREGATION}",
    ),
    # The training engine, and the critic.
    IneffectiveRule(
        _paths_in(
            "trainer", "use_dynamic_bsz", "use_remove_padding", "param_offload", "optimizer_offload", "save_strategy"
        ),
        lambda _experiment, stage: stage.trainer.engine != "verl",
        _VERL_ONLY_REASON,
    ),
    IneffectiveRule(
        _paths_in("trainer", "trainer_strategy"),
        lambda _experiment, stage: stage.trainer.engine != "verl",
        _VERL_ONLY_REASON,
    ),
    IneffectiveRule(
        (*_paths_in("trainer", "critic_warmup"), *_paths_in("model", "critic_model_path")),
        lambda _experiment, stage: "values" not in fields_of(stage.algorithm),
        "the algorithm has no critic",
    ),
)
"""Rules in order of precedence: the first applicable rule gives the reason; a section precedes its fields."""


def _rules_by_path() -> Mapping[FieldPath, tuple[IneffectiveRule, ...]]:
    """Returns the rules of each field."""
    rules: dict[FieldPath, tuple[IneffectiveRule, ...]] = {}
    for rule in RULES:
        for path in rule.places:
            rules[path] = (*rules.get(path, ()), rule)
    return rules


_RULES_BY_PATH: Final = _rules_by_path()
"""Rules of each field, in order of precedence."""


def ineffective_fields(config: Mapping[str, Any], stages: Sequence[tuple[StageConfig, StageSpec]]) -> Iterator[str]:
    """Yields a warning for each field written in the file that no stage uses.

    `config` is the file as plain data. A field that a stage inherits without using it causes no warning if another
    stage uses it.
    """
    idle_by_stage = [
        (_stage_fields(config, stage_config), _idle(stage_config.experiment, spec)) for stage_config, spec in stages
    ]
    for (stage, _), (fields, idle) in zip(stages, idle_by_stage, strict=True):
        for path, why in idle.items():
            if fields is not config and _at(fields, path) is not None:
                yield f"{show((*stage.prefix, *path))} has no effect: {why}"
    everywhere = {path: why for _, idle in idle_by_stage for path, why in idle.items()}
    for path, why in everywhere.items():
        unused = (path in idle or _replaces(fields, path) for fields, idle in idle_by_stage)
        if _at(config, path) is not None and all(unused):
            yield f"{show(path)} has no effect: {why}"


def _stage_fields(config: Mapping[str, Any], stage: StageConfig) -> Mapping[str, Any]:
    """Returns the keys written in the stage; the file's keys, if there are no stages."""
    if not stage.prefix:
        return config
    fields: Mapping[str, Any] = config["stages"][stage.prefix[1]]
    return fields


def _replaces(fields: Mapping[str, Any], path: FieldPath) -> bool:
    """True if the stage's own value replaces the inherited one; mappings are merged instead."""
    override = _at(fields, path)
    return override is not None and not isinstance(override, Mapping)


def _idle(experiment: Experiment, stage: StageSpec) -> dict[FieldPath, str]:
    """Returns the fields written without effect in one stage, each with the reason."""
    reasons: dict[FieldPath, str] = {}
    untrained = f"mode {BENCH}" if experiment.mode == BENCH else "explorer.collect_only"
    for path, is_default in written_fields(experiment):
        rules = (
            (path[:length], rule)
            for length in range(1, len(path) + 1)
            for rule in _RULES_BY_PATH.get(path[:length], ())
            if rule.default_too or not is_default
        )
        for idle_path, rule in rules:
            if idle_path in reasons or rule.holds(experiment, stage):
                reasons.setdefault(idle_path, rule.why.format(untrained=untrained, trainer=stage.trainer.engine))
                break
    return reasons


def _at(tree: Any, path: FieldPath) -> Any:
    """Returns the value at `path`; None if absent."""
    for key in path:
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(key)
    return tree
