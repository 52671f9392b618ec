"""Checks possible only in the daemon, before acceptance: models, rows and digests.

Files are read, none is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.resolve.pipeline import OPERATORS_AT
from rftd.daemon.config.resolve.tasksets import placed_tasksets
from rftd.daemon.run.supervisor.contamination import Contamination
from rftd.daemon.run.supervisor.engine_packages import check_packages, left_to_workers
from rftd.daemon.run.supervisor.findings import Findings
from rftd.daemon.run.supervisor.hub_cache import check_whole
from rftd.daemon.run.supervisor.memory_plan import with_memory
from rftd.daemon.run.supervisor.rounded_exports import rounding_warnings
from rftd.daemon.run.supervisor.row_looks import (
    check_categories,
    check_prompts,
    check_recorded,
    check_tasks,
    check_train_rows,
    look_tokenizer,
)
from rftd.daemon.run.supervisor.stage_steps import auxiliary_buffer, row_warnings, steps_of
from rftd.daemon.run.supervisor.task_columns import check_selector, drawn
from rftd.daemon.run.supervisor.task_pipelines import check_made
from rftd.daemon.run.supervisor.token_looks import check_opens, check_tokens
from rftd.ops.errors import ConfigError, DataError, RftdError
from rftd.ops.hub_id import DATASET, MODEL, HubId
from rftd.ops.plugins import Plugins
from rftd.streams.spec.spec import ExperimentSpec, ModelSpec, StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.control.policies.priorities import make_priority
from rftd.workers.control.policies.registry import make_policy
from rftd.workers.datasets.recorded import RECORDED
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.devices.device_memory import number_in, settings_of
from rftd.workers.devices.host import ANY_HOST, Host
from rftd.workers.generation import engine_registry as rollout_engines
from rftd.workers.generation.auxiliary.auxiliary_stage import auxiliary_stage
from rftd.workers.generation.shared_devices import check_shared_devices
from rftd.workers.learning import engine_registry as trainer_engines
from rftd.workers.models.model_folder import check_rights, check_texts, check_weights, has_config
from rftd.workers.models.model_type import check_model_type, check_own_code, check_positions, check_rotation
from rftd.workers.pipelines.registry import OPERATORS
from rftd.workers.workflows.registry import WORKFLOWS
from rftd.workers.workflows.rewards.registry import REWARDS
from rftd.workers.workflows.runner import check_names
from rftd.workers.workflows.source import SourceName, agent_source, check_source, source_name

_JUDGES: Final = ("llm_judge_reward", "rubric_judge_reward")
"""Rewards answered by an auxiliary model."""


def check_tasksets(spec: ExperimentSpec, findings: Findings | None = None) -> None:
    """Reports tasksets that a worker would refuse to open; raises ConfigError or DataError without `findings`."""
    collected = findings or Findings(spec)
    for stage in spec.stages:
        for index, operator in enumerate(stage.pipeline):
            with collected.of(stage, (*OPERATORS_AT, index)):
                _check_arguments(OPERATORS, operator.name, operator.args, "args")
        for taskset, path in placed_tasksets(stage):
            with collected.of(stage, path):
                _check_arguments(WORKFLOWS, taskset.workflow, taskset.workflow_args, "workflow_args")
            with collected.of(stage, path):
                _check_arguments(REWARDS, _reward(taskset), taskset.reward_args, "reward_fn_args")
            with collected.of(stage, path):
                _check_biases(taskset, stage)
            with collected.of(stage, path):
                _check_judge(taskset, stage)
    if findings is None:
        collected.check()


def _reward(taskset: TasksetSpec) -> str | None:
    """Returns the name of the reward that receives the taskset's arguments: the configured one, else its workflow's
    default; None if unknown here.
    """
    if taskset.reward is not None:
        return taskset.reward
    try:
        return getattr(WORKFLOWS.load(taskset.workflow), "default_reward", None)
    except ConfigError:  # raised with more detail by the worker opening the taskset
        return None


def _check_arguments(plugins: Plugins[Any], name: str | None, arguments: Mapping[str, Any], field: str) -> None:
    """Raises ConfigError about `field` for arguments that a plug-in installed here would refuse."""
    if name is None:
        return
    try:
        plugins.load(name)
    except ConfigError:  # its worker may have the plug-in, and reports a missing one
        return
    try:
        plugins.check_arguments(name, arguments)
    except RftdError as error:
        error.field = f"{field}.{error.field}" if error.field in arguments else field
        raise


def _check_judge(taskset: TasksetSpec, stage: StageSpec) -> None:
    """Raises ConfigError for a built-in reward that asks an auxiliary model if no such model is configured."""
    reward = _reward(taskset)
    if reward not in _JUDGES:
        return
    names = [auxiliary.name for auxiliary in stage.auxiliary]
    judge = str(taskset.reward_args.get("judge", ""))
    if not names or (judge and judge not in names):
        needed_model = f"the auxiliary model {judge!r}" if judge else "an auxiliary model"
        raise ConfigError(
            f"{reward} asks {needed_model}, and the file names {', '.join(names) or 'none'}",
            field="reward_fn_args.judge" if judge else "default_reward_fn_type",
            fix="add the judge to explorer.auxiliary_models",
        )


def _check_biases(taskset: TasksetSpec, stage: StageSpec) -> None:
    """Raises ConfigError for a biased token id outside the model's vocabulary, if config.json gives its size."""
    if stage.rollout.engine == "fake":
        return
    vocabulary = number_in(settings_of(Path(stage.model.path)), "vocab_size")
    for token, _ in taskset.sampling.logit_bias:
        if vocabulary and token >= vocabulary:
            raise ConfigError(
                f"token {token} is beyond the vocabulary of {stage.model.path!r}, which has {vocabulary} tokens",
                field=f"rollout_args.logit_bias.{token}",
                fix=f"name token ids of this model, 0 to {vocabulary - 1}",
            )


def preflight(spec: ExperimentSpec, host: Host = ANY_HOST) -> ExperimentSpec:
    """Returns the specification with rows, digests, step counts and micro-batches filled in, for workers on `host`.

    Raises ConfigError, DataError with every error at once. Blocks.
    """
    check_made(spec.config)
    findings = Findings(spec)
    contamination = Contamination(spec)
    stages = tuple(_preflight_stage(stage, host, findings, contamination) for stage in spec.stages)
    check_tasksets(spec, findings)
    findings.check()
    of_rows = (text for before, stage in zip(spec.stages, stages, strict=True) for text in row_warnings(before, stage))
    looked = (*of_rows, *contamination.warnings(), *rounding_warnings(spec))
    warnings = (*spec.warnings, *left_to_workers(spec), *looked)
    return with_memory(msgspec.structs.replace(spec, stages=stages, warnings=warnings), host)


def with_files(errors: ConfigErrors) -> ConfigErrors:
    """Returns the errors of a specification, together with those of its models and datasets. Blocks."""
    if errors.draft is None:
        return errors
    findings = Findings(errors.draft)
    for stage in errors.draft.stages:
        _check_models(stage, None, findings)
        _count(stage, findings)
    return ConfigErrors([*errors.errors, *findings.errors])


def _count(
    stage: StageSpec, findings: Findings, contamination: Contamination | None = None
) -> dict[FieldPath, TasksetSpec]:
    """Returns the readable tasksets of a stage, with counted rows, by their field in the file; unreadable ones are
    reported to `findings`. Without `contamination`, prompts are not compared.
    """
    counted: dict[FieldPath, TasksetSpec] = {}
    for taskset, path in placed_tasksets(stage):
        with findings.of(stage, path, at="path"):
            # Rows of queues and of serving stages come later.
            later = taskset.queue or (stage.serving is not None and taskset is stage.taskset)
            counted[path] = taskset if later else _counted(taskset, stage, contamination)
    if stage.dataset is not None:
        with findings.of(stage, _dataset(stage), at="path"):
            counted[_dataset(stage)] = _counted(stage.dataset, stage, contamination, trained=True)
    return counted


def _preflight_stage(stage: StageSpec, host: Host, findings: Findings, contamination: Contamination) -> StageSpec:
    """Returns the stage with counted rows and steps, after recording its errors in `findings`."""
    _check_parts(stage, host, findings)
    check_packages(stage, host, findings)
    _check_models(stage, host, findings)
    counted = _count(stage, findings, contamination)
    for taskset, path in placed_tasksets(stage):
        with findings.of(stage, path, at="data_selector.selector_type"):
            check_selector(taskset, deterministic=findings.spec.deterministic)
        with findings.of(stage, path, at="workflow_args.agent"):
            _check_source(stage, agent_source(taskset.workflow, taskset.workflow_args), host)
        with findings.of(stage, path, at="default_workflow_type"):
            _check_source(stage, source_name(taskset.workflow), host)
            with findings.of(stage, path, at="default_reward_fn_type"):
                _check_source(stage, source_name(taskset.reward), host)
                check_names(taskset)
    training_count = len(tasksets_of(stage))
    taskset_paths = [path for _, path in placed_tasksets(stage)]
    tasksets = tuple(counted[path] for path in taskset_paths[:training_count] if path in counted)
    dataset = counted.get(_dataset(stage))
    if len(tasksets) < training_count or (stage.dataset and not dataset):
        return stage  # the step count follows from rows not counted yet
    with findings.of(stage):
        check_tokens(stage)
    tasks = sum(taskset.rows for taskset in tasksets)
    collect_groups = stage.collect_groups
    if stage.kind == "explore":
        collect_groups = collect_groups or stage.total_epochs * tasks
    total_steps = stage.total_steps
    with findings.of(stage):
        total_steps = steps_of(stage, tasks, dataset)
    return msgspec.structs.replace(
        stage,
        taskset=tasksets[0] if tasksets else None,
        more_tasksets=tasksets[1:],
        dataset=dataset,
        evals=tuple(counted.get(path, taskset) for taskset, path in list(placed_tasksets(stage))[training_count:]),
        total_steps=total_steps,
        collect_groups=collect_groups,
        algorithm=msgspec.structs.replace(
            stage.algorithm, optimizer=stage.algorithm.optimizer.with_counted_warmup(total_steps)
        ),
    )


def _check_source(stage: StageSpec, source: SourceName | None, host: Host) -> None:
    """Checks a workflow or reward in a submitted Python file without running the code; its imports only if workers run
    on this machine. Nothing without a `source`. Raises ConfigError.
    """
    if source is None:
        return
    if source.file not in stage.sources:
        raise ConfigError(f"{source.file} is not among the experiment's sources", fix="submit it with `rftd submit`")
    check_source(source, stage.sources[source.file], imports=host.seen and not host.clustered)


def _dataset(stage: StageSpec) -> FieldPath:
    """Returns the field naming the rows to train on: an auxiliary buffer beside a taskset, else the experience
    buffer.
    """
    if stage.expert_rows:
        return auxiliary_buffer(stage)
    return ("buffer", "trainer_input", "experience_buffer")


def _check_parts(stage: StageSpec, host: Host, findings: Findings) -> None:
    """Reports engines, policies and arguments not available here."""
    if stage.kind != "both" or stage.taskset is not None:  # else the explore half names the engine
        with findings.of(stage, at="explorer.rollout_model.engine_type"):
            rollout_engines.check_engine(stage.rollout)
    with findings.of(stage, at="algorithm.policy_loss_fn"):
        _check_source(stage, source_name(stage.algorithm.policy_loss), host)
    with findings.of(stage, at="trainer.trainer_type"):
        trainer_engines.check_engine(stage.trainer)
        trainer_engines.check_objective(stage)
    # Built only for the checks of arguments in the constructors.
    with findings.of(stage, at="policy"):
        make_policy(stage.policy)
    with findings.of(stage, at="buffer.trainer_input.experience_buffer.replay_buffer.priority_fn"):
        make_priority(stage.policy.priority)


def _check_models(stage: StageSpec, host: Host | None, findings: Findings) -> None:
    """Reports models and adapters missing, unsupported by the engine, or too large for the devices of `host`."""
    trusted = stage.model.trust_remote_code
    if stage.trainer.engine != "fake":
        with findings.of(stage):
            _check_model(stage.model.path, trusted=trusted)
            check_texts(Path(stage.model.path), field="model.model_path")
            if stage.trainer.engine != "tinker":  # else the weights are at the service
                check_weights(Path(stage.model.path), field="model.model_path")
            if host is not None:  # in a draft neither lengths nor engines are certain
                check_rotation(Path(stage.model.path), stage.model.max_model_len, field="model.max_model_len")
                check_positions(Path(stage.model.path), stage.model.max_model_len, field="model.max_model_len")
                trainer_engines.check_models(stage)
                trainer_engines.check_room(stage, host.for_trainers)
        if host is not None:
            with findings.of(stage):
                check_opens(Path(stage.model.path), trusted=trusted, field="model.model_path")
        with findings.of(stage):
            _check_adapter(stage.model)
        for path, field in (
            (stage.trainer.critic_path, "model.critic_model_path"),
            (stage.trainer.teacher_path, "explorer.auxiliary_models"),
        ):
            if path:
                with findings.of(stage):
                    _check_model(path, field, trusted=trusted)
                    check_weights(Path(path), field=field)
    if stage.kind != "train":
        _check_engine_runs(stage, host, findings)
        if host is not None:
            with findings.of(stage):
                check_shared_devices(stage, host, deterministic=findings.spec.deterministic)
    for number, auxiliary in enumerate(stage.auxiliary):
        if not auxiliary.served and auxiliary.engine != "fake":
            section = f"explorer.auxiliary_models[{number}]"
            with findings.of(stage):
                _check_model(auxiliary.path, f"{section}.model_path", trusted=auxiliary.trust_remote_code)
                check_texts(Path(auxiliary.path), field=f"{section}.model_path")
                check_weights(Path(auxiliary.path), field=f"{section}.model_path")
                if host is not None:
                    own_code = auxiliary.trust_remote_code
                    check_opens(Path(auxiliary.path), trusted=own_code, field=f"{section}.model_path")
            _check_engine_runs(auxiliary_stage(auxiliary, stage), host, findings, section)


def _check_engine_runs(stage: StageSpec, host: Host | None, findings: Findings, section: str = "") -> None:
    """Reports the findings of the stage's rollout engine about its model and its devices.

    `section` is the section of an auxiliary model, combining the fields of `model` and `explorer.rollout_model`.
    """
    if host is None or not has_config(Path(stage.model.path)):  # a missing model is reported above
        return
    for check in rollout_engines.checks_of(stage, host, deterministic=findings.spec.deterministic):
        with findings.of(stage):
            try:
                check()
            except (ConfigError, DataError) as error:
                if section and error.field is not None:
                    below = error.field.removeprefix("explorer.rollout_model.").removeprefix("model.")
                    error.field = f"{section}.{below}"
                raise


def _check_model(path: str, field: str = "model.model_path", *, trusted: bool) -> None:
    """Checks that `path` is a readable, complete model folder of a supported architecture; `trusted`: code in the
    folder may run. Raises DataError about `field`.
    """
    folder = Path(path)
    check_rights(folder, field=field)
    id = HubId.parse(path)
    if id is not None and not folder.is_dir():
        raise DataError(
            f"no such model folder: {path!r}, and no model of this name in the hub's cache of the daemon's user",
            field=field,
            fix=f"fetch it there: {id.fetch_command(MODEL)}, or rftd submit --pull",
        )
    if not folder.is_dir() or not (folder / "config.json").is_file():
        converted = folder / "huggingface"
        fix = "give the path of a local Hugging Face folder (config.json, tokenizer, model.safetensors)"
        if (converted / "config.json").is_file():  # the last checkpoint's folder, or one made by `rftd convert`
            fix = f"give {str(converted)!r}, which has one"
        raise DataError(
            f"no model in {path!r}" if folder.is_dir() else f"no such model folder: {path!r}",
            field=field,
            fix=fix,
        )
    try:
        check_whole(folder, MODEL)
    except DataError as error:
        error.field = field
        raise
    # Weights readable only by unpickling are code, refused by every worker: the experiment would fail again and again.
    if any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
        raise DataError(
            f"the weights in {path!r} are pickles (pytorch_model.bin), which rftd never loads",
            field=field,
            fix="save them as model.safetensors, as save_pretrained does by itself; .bin files are not read",
        )
    check_model_type(folder, trust_remote_code=trusted, field=field)
    if trusted:
        check_own_code(folder, field=field)


def _check_adapter(model: ModelSpec) -> None:
    """Raises DataError if the adapter's folder lacks its weights."""
    if model.lora is None or not model.lora.path:
        return
    if not (Path(model.lora.path) / "adapter_model.safetensors").is_file():
        raise DataError(
            f"no adapter in {model.lora.path!r}",
            field="model.lora_configs",
            fix="give a folder in peft's layout, with adapter_model.safetensors; or no path, for a fresh adapter",
        )


def _counted(
    spec: TasksetSpec, stage: StageSpec, contamination: Contamination | None, *, trained: bool = False
) -> TasksetSpec:
    """Returns the taskset with its rows counted and inspected. Errors name a field below the taskset."""
    try:
        for path in map(Path, spec.paths):
            if path.parent.name == "snapshots":
                check_whole(path, DATASET)
        with Taskset.open(spec) as taskset:
            if trained and spec.schema == RECORDED:
                check_recorded(taskset, stage)
            elif trained:
                check_train_rows(taskset, look_tokenizer(stage, chat_template=spec.format.chat_template))
            else:
                check_tasks(taskset)
                check_prompts(taskset, stage)
                check_categories(taskset)
            if contamination is not None:
                contamination.look(spec, taskset)
            return msgspec.structs.replace(drawn(taskset), rows=len(taskset), digest=taskset.digest)
    except DataError as error:
        error.field = _column(spec, error.field)
        raise


def _column(spec: TasksetSpec, key: str | None) -> str | None:
    """Returns the field of the file that names a row's column `key`; None if no field does."""
    if key in spec.feature_keys:
        return "data_selector.feature_keys"
    form = spec.format
    names = [
        name for name in form.__struct_fields__ if name == key or (name.endswith("_key") and getattr(form, name) == key)
    ]
    return f"format.{names[0]}" if key and names else None
