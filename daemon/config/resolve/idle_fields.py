"""`idle_fields` finds what is written and does nothing in its stage, by one table of places, conditions and reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.resolve.bench import BENCH, of_service
from rftd.daemon.config.resolve.rows import NOT_OF_ROWS, OF_EXPERIENCES
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
"""True if the fields of a rule do nothing in the stage that came of a file."""
_BY_NORM: Final = "seq-mean-token-sum-norm"


@dataclass(frozen=True, slots=True)
class IdleRule:
    """Places that do nothing where the condition holds: fields, or sections of which nothing acts."""

    places: tuple[FieldPath, ...]
    holds: Condition
    why: str
    """The reason; `{untrained}` is what says that nothing is trained, `{trainer}` the engine that trains."""
    default_too: bool = False
    """True where a default that is written out is spoken of as well: another field says something else."""


def _of(section: str, *names: str) -> tuple[FieldPath, ...]:
    """The places of these fields of one section; the section itself without names."""
    above = tuple(section.split(".")) if section else ()
    return tuple((*above, *name.split(".")) for name in names) or (above,)


def _trains_rows(_given: Experiment, stage: StageSpec) -> bool:
    return stage.kind == "train"


def _explores(_given: Experiment, stage: StageSpec) -> bool:
    return stage.kind != "train"


def _trains_nothing(_given: Experiment, stage: StageSpec) -> bool:
    return stage.kind == "explore"


def _measures(given: Experiment, _stage: StageSpec) -> bool:
    return given.mode == BENCH


def _serves(given: Experiment, _stage: StageSpec) -> bool:
    return given.mode == SERVE


def _needs_no_norm(_given: Experiment, stage: StageSpec) -> bool:
    algorithm = stage.algorithm
    ours = POLICY_LOSSES.builtin(algorithm.policy_loss)
    return ours and _BY_NORM not in (algorithm.loss_agg_mode, *algorithm.policy_loss_args.values())


def _needs_no_loss_type(given: Experiment, _stage: StageSpec) -> bool:
    section = given.algorithm.rollout_correction or RolloutCorrection()
    return not section.bypass_mode or section.old_logprobs is not None


def _each_names(given: Experiment, field: str, *, held_out: bool) -> bool:
    """True if every taskset of those that would take a default has the field itself."""
    tasks = given.buffer.explorer_input
    training = () if given.mode in (BENCH, SERVE) else (tasks.taskset, *tasks.tasksets)
    tasksets = [each for each in (*training, *(tasks.eval_tasksets if held_out else ())) if each is not None]
    return all(getattr(each, field) for each in tasksets)


def _needs_no_workflow(given: Experiment, _stage: StageSpec) -> bool:
    # Held-out tasksets may have a default of their own, which comes before this one.
    own = bool(given.buffer.explorer_input.default_eval_workflow_type)
    return _each_names(given, "default_workflow_type", held_out=not own)


_TASKSET: Final = "buffer.explorer_input.taskset"
_BUFFER: Final = "buffer.trainer_input.experience_buffer"
_CORRECTION: Final = "algorithm.rollout_correction"
_ROWLESS: Final = "experiences come from explorers, and are no rows of a dataset"
_UNTRAINED: Final = "nothing is trained with {untrained}"
_ASKED: Final = "tasks are what clients ask with mode serve"
_OF_VERL: Final = "it is verl's, and {trainer} trains"

RULES: Final = (
    # Rows that are trained as they are.
    IdleRule(
        _of("", "explorer", "synchronizer", "policy", "cluster", "buffer.explorer_input"),
        _trains_rows,
        "the stage trains on rows, without explorers",
    ),
    IdleRule(
        _of("model", "temperature", "top_p", "top_k", "repetition_penalty", "min_response_tokens", "external_model"),
        _trains_rows,
        "the stage trains on rows, without explorers",
    ),
    IdleRule(_of(_BUFFER, *OF_EXPERIENCES), _trains_rows, NOT_OF_ROWS),
    IdleRule(
        _of(_BUFFER, "format"),
        lambda _given, stage: stage.dataset is not None and stage.dataset.schema == RECORDED,
        "recorded rollouts are token ids, in columns of fixed names",
    ),
    IdleRule(
        _of("buffer.trainer_input", "auxiliary_buffers"),
        _trains_rows,
        "only the rows of experience_buffer are trained on",
    ),
    # Experiences, which explorers make.
    IdleRule(_of(_BUFFER, "path"), _explores, "the log keeps every experience"),
    IdleRule(_of(_BUFFER, "name", "split", "subset_name", "format", "limit_rows"), _explores, _ROWLESS),
    IdleRule(
        _of(_BUFFER, "schema_type"),
        lambda given, stage: (
            stage.kind != "train" and given.buffer.trainer_input.experience_buffer.schema_type != "experience"
        ),
        _ROWLESS,
    ),
    # Modes that train nothing, and the mode whose tasks clients bring.
    IdleRule(_of("", "algorithm", "synchronizer", "buffer.trainer_input"), _measures, _UNTRAINED),
    IdleRule(
        _of("buffer", "batch_size", "total_epochs", "total_steps"), _measures, "mode bench answers tasksets whole"
    ),
    IdleRule(
        _of("buffer.explorer_input", "taskset", "tasksets"), _measures, "mode bench answers eval_tasksets, and no other"
    ),
    IdleRule(
        _of("explorer", "eval_interval", "over_rollout", "straggler_reissue", "max_inflight_batches"),
        _measures,
        "mode bench answers each task of eval_tasksets once, and waits for it",
    ),
    IdleRule(
        _of("explorer", "bench_on_latest_checkpoint"),
        lambda given, _stage: given.mode != BENCH,
        "only mode bench measures checkpoints",
    ),
    IdleRule(
        _of("explorer", "bench_on_latest_checkpoint", "eval_on_startup"),
        lambda given, _stage: given.mode == BENCH and of_service(given),
        "a service answers, which has no checkpoints",
    ),
    IdleRule(
        _of("trainer"),
        lambda given, _stage: given.mode == BENCH and of_service(given),
        "nothing is trained with mode bench, and a service answers",
    ),
    IdleRule(
        _of("trainer", "save_interval", "total_steps", "save_hf_checkpoint", "grad_clip", "max_checkpoints_to_keep"),
        _trains_nothing,
        _UNTRAINED,
    ),
    IdleRule(
        _of("trainer", "ppo_epochs", "ppo_mini_batch_size", "shuffle", "max_nonfinite_steps", "max_idle_steps"),
        _trains_nothing,
        _UNTRAINED,
    ),
    IdleRule(_of("", "policy", "algorithm.optimizer", "buffer.train_batch_size"), _trains_nothing, _UNTRAINED),
    IdleRule(
        _of(_TASKSET, "path", "name", "subset_name", "split", "limit_rows", "storage_type", "max_retry_times"),
        _serves,
        _ASKED,
    ),
    IdleRule(_of(_TASKSET, "format", "default_workflow_type", "workflow_args", "data_selector"), _serves, _ASKED),
    IdleRule(
        (*_of(_TASKSET, "default_reward_fn_type", "reward_fn_args"), *_of("buffer.explorer_input", "tasksets")),
        _serves,
        _ASKED,
    ),
    IdleRule(
        _of("explorer", "proxy_port", "listen_address", "min_running_model_num"),
        lambda given, _stage: given.mode != SERVE,
        "only mode serve answers clients",
    ),
    # A switch that is off.
    IdleRule(
        _of("model.tinker", "base_model", "rank", "seed", "train_mlp", "train_attn", "train_unembed", "base_url"),
        lambda given, _stage: not given.model.tinker.enable,
        "model.tinker.enable is false",
    ),
    IdleRule(
        _of("model.external_model", "base_url_env", "api_key_env", "model_name"),
        lambda given, _stage: not given.model.external_model.enable,
        "model.external_model.enable is false",
    ),
    IdleRule(
        _of("explorer.dynamic_timeout", "ratio", "warmup_min_steps"),
        lambda given, _stage: not given.explorer.dynamic_timeout.enable,
        "explorer.dynamic_timeout.enable is false",
    ),
    IdleRule(
        _of("explorer.straggler_reissue", "ratio"),
        lambda given, _stage: not given.explorer.straggler_reissue.enable,
        "explorer.straggler_reissue.enable is false",
    ),
    IdleRule(
        _of("explorer.over_rollout", "wait_after_min", "return_partial_tasks"),
        lambda given, _stage: not given.explorer.over_rollout.ratio,
        "explorer.over_rollout.ratio is 0",
    ),
    # Another field that says so.
    IdleRule(
        _of("trainer", "trainer_type"),
        lambda given, _stage: given.model.tinker.enable and given.trainer.trainer_type != TINKER,
        "model.tinker.enable is true: Tinker trains",
    ),
    IdleRule(
        _of("explorer.rollout_model", "engine_type"),
        lambda given, _stage: given.model.tinker.enable and given.explorer.rollout_model.engine_type != TINKER,
        "model.tinker.enable is true: Tinker generates",
    ),
    IdleRule(
        _of("synchronizer", "explorer_sync_interval", "sync_offset"),
        lambda given, stage: stage.synchronizer.sync_style == "fully_async" and given.mode != SERVE,
        "fully_async explorers never stop",
    ),
    IdleRule(
        _of("synchronizer", "trainer_sync_interval"),
        lambda _given, stage: stage.synchronizer.sync_style == "explorer_driven",
        "with explorer_driven the trainer is asked",
    ),
    IdleRule(
        _of("synchronizer", "memory_dir"),
        lambda _given, stage: stage.synchronizer.sync_method in ("checkpoint", "nccl", "service"),
        "no weights travel in memory: it is for sync_method memory",
    ),
    IdleRule(
        _of("explorer", "max_inflight_batches"),
        lambda given, stage: stage.synchronizer.sync_style == "fixed" or given.deterministic,
        "explorers wait for the weights of their schedule; it is for the other styles",
    ),
    IdleRule(
        (
            *_of("explorer", "eval_interval", "eval_on_startup"),
            *_of("buffer.explorer_input", "default_eval_workflow_type"),
        ),
        lambda _given, stage: stage.kind != "train" and not stage.evals,
        "there are no eval_tasksets",
    ),
    IdleRule(
        _of("buffer.explorer_input", "default_eval_workflow_type"),
        lambda given, _stage: all(each.default_workflow_type for each in given.buffer.explorer_input.eval_tasksets),
        "each of eval_tasksets names its own",
    ),
    IdleRule(
        _of("buffer.explorer_input", "default_workflow_type", "default_reward_fn_type"),
        lambda given, stage: given.mode == SERVE and not stage.evals,
        _ASKED,
    ),
    IdleRule(_of("buffer.explorer_input", "default_workflow_type"), _needs_no_workflow, "each taskset names its own"),
    IdleRule(
        _of("buffer.explorer_input", "default_reward_fn_type"),
        lambda given, _stage: _each_names(given, "default_reward_fn_type", held_out=True),
        "each taskset names its own",
    ),
    IdleRule(
        _of("cluster", "node_num"),
        lambda given, _stage: not given.cluster.gpu_per_node,
        "it counts only together with cluster.gpu_per_node",
    ),
    IdleRule(
        _of("cluster", "gpu_per_node"),
        lambda given, _stage: not given.cluster.node_num,
        "it counts only together with cluster.node_num",
    ),
    # The optimizer and the loss.
    IdleRule(
        _of("algorithm.optimizer", "min_lr_ratio"),
        lambda _given, stage: stage.algorithm.optimizer.lr_scheduler_type == "constant",
        "lr_scheduler_type is constant",
    ),
    IdleRule(
        _of("algorithm.optimizer", "betas", "eps"),
        lambda _given, stage: stage.algorithm.optimizer.optimizer_type == "sgd",
        "they are Adam's, and optimizer_type is sgd",
    ),
    IdleRule(
        _of("algorithm.optimizer", "lr_warmup_steps_ratio"),
        lambda given, _stage: given.algorithm.optimizer.lr_warmup_steps >= 0,
        "lr_warmup_steps says how many",
    ),
    IdleRule(
        _of("algorithm.optimizer", "clip_grad"),
        lambda given, _stage: (
            "grad_clip" in given.trainer.model_fields_set
            and given.algorithm.optimizer.clip_grad != given.trainer.grad_clip
        ),
        "trainer.grad_clip is set",
        default_too=True,
    ),
    IdleRule(
        _of(_CORRECTION, "rollout_is_threshold", "rollout_is_batch_normalize"),
        lambda given, _stage: not (given.algorithm.rollout_correction or RolloutCorrection()).rollout_is,
        "rollout_is is not set",
    ),
    IdleRule(
        _of(_CORRECTION, "rollout_rs_threshold"),
        lambda given, _stage: not (given.algorithm.rollout_correction or RolloutCorrection()).rollout_rs,
        "rollout_rs is not set",
    ),
    IdleRule(_of(_CORRECTION, "loss_type"), _needs_no_loss_type, "it is for bypass_mode: true"),
    IdleRule(_of("algorithm", "loss_scale_factor"), _needs_no_norm, f"it is the divisor of loss_agg_mode {_BY_NORM}"),
    # The engine that trains, and who learns beside the policy.
    IdleRule(
        _of("trainer", "use_dynamic_bsz", "use_remove_padding", "param_offload", "optimizer_offload", "save_strategy"),
        lambda _given, stage: stage.trainer.engine != "verl",
        _OF_VERL,
    ),
    IdleRule(_of("trainer", "trainer_strategy"), lambda _given, stage: stage.trainer.engine != "verl", _OF_VERL),
    IdleRule(
        (*_of("trainer", "critic_warmup"), *_of("model", "critic_model_path")),
        lambda _given, stage: "values" not in fields_of(stage.algorithm),
        "the algorithm has no critic",
    ),
)
"""In this order: the first rule of a place that holds gives the reason, and a section comes before what is in it."""


def _by_place() -> Mapping[FieldPath, tuple[IdleRule, ...]]:
    places: dict[FieldPath, tuple[IdleRule, ...]] = {}
    for rule in RULES:
        for place in rule.places:
            places[place] = (*places.get(place, ()), rule)
    return places


_BY_PLACE: Final = _by_place()


def idle_fields(config: Mapping[str, Any], stages: Sequence[tuple[StageConfig, StageSpec]]) -> Iterator[str]:
    """A warning for each place that is written where no stage has a use for it.

    `config` is the file as plain data. What a stage inherits and another one uses is not spoken of.
    """
    found = [(_own(config, each), _idle(each.experiment, spec)) for each, spec in stages]
    for (stage, _), (own, idle) in zip(stages, found, strict=True):
        for place, why in idle.items():
            if own is not config and _at(own, place) is not None:
                yield f"{show((*stage.prefix, *place))} has no effect: {why}"
    everywhere = {place: why for _, idle in found for place, why in idle.items()}
    for place, why in everywhere.items():
        unused = (place in idle or _replaces(own, place) for own, idle in found)
        if _at(config, place) is not None and all(unused):
            yield f"{show(place)} has no effect: {why}"


def _own(config: Mapping[str, Any], stage: StageConfig) -> Mapping[str, Any]:
    """The keys that the stage itself writes; the file's, if it has no stages."""
    if not stage.prefix:
        return config
    own: Mapping[str, Any] = config["stages"][stage.prefix[1]]
    return own


def _replaces(own: Mapping[str, Any], place: FieldPath) -> bool:
    """True if a stage has a value of its own there, in whose place nothing is inherited; sections are laid over."""
    value = _at(own, place)
    return value is not None and not isinstance(value, Mapping)


def _idle(given: Experiment, stage: StageSpec) -> dict[FieldPath, str]:
    """The places of one stage, each with the reason."""
    found: dict[FieldPath, str] = {}
    untrained = f"mode {BENCH}" if given.mode == BENCH else "explorer.collect_only"
    for path, is_default in written_fields(given):
        rules = (
            (path[:length], rule)
            for length in range(1, len(path) + 1)
            for rule in _BY_PLACE.get(path[:length], ())
            if rule.default_too or not is_default
        )
        for place, rule in rules:
            if place in found or rule.holds(given, stage):
                found.setdefault(place, rule.why.format(untrained=untrained, trainer=stage.trainer.engine))
                break
    return found


def _at(tree: Any, place: FieldPath) -> Any:
    """The value that stands there; None if none does."""
    for part in place:
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(part)
    return tree
