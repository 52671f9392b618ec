"""Tasksets with workflow, reward and sampling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Notes, Unsupported
from rftd.daemon.config.resolve.arguments import check_declared
from rftd.daemon.config.resolve.model import LengthLimits
from rftd.daemon.config.resolve.own_code import check_own_source
from rftd.daemon.config.resolve.rows import sources_of
from rftd.daemon.config.resolve.task_pipeline import pending_inputs
from rftd.daemon.config.schema.buffer import DataSelector, ExplorerInput, Taskset
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import as_declared
from rftd.ops.errors import ConfigError
from rftd.ops.plugins import Plugins
from rftd.streams.log.bounds import LAST_INDEX
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import SamplingSpec, StageSpec, TasksetSpec
from rftd.streams.spec.split_submission import TRAIN
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.control.selectors.registry import SELECTORS, draws, follows_rewards
from rftd.workers.control.selectors.registry import check_selector as check_name
from rftd.workers.generation.sampling import TRAINED_FIX, trainable, unlike_the_policy
from rftd.workers.workflows.class_path import class_path
from rftd.workers.workflows.environments.address import environment_address, names_environment
from rftd.workers.workflows.registry import ENVIRONMENT_WORKFLOW, WORKFLOWS, check_workflow, own_reward
from rftd.workers.workflows.rewards.registry import REWARDS
from rftd.workers.workflows.source import agent_source, source_name

_INPUT: FieldPath = ("buffer", "explorer_input")
"""Section of the tasks."""
_FIRST: Final = ((*_INPUT, "taskset"), (*_INPUT, "tasksets", 0))
"""Fields of the taskset made by a task pipeline."""
_FALLBACK_WORKFLOW = "math_workflow"
"""Workflow of tasksets without a written one."""
_BOXED_ARGUMENTS: Final = ("with_think", "format_score_coef")
"""Arguments common to a workflow and its reward."""
_BOXED_WORKFLOWS: Final = (
    "math_boxed_workflow",
    "async_math_boxed_workflow",
    "on_policy_distill_math_workflow",
    "math_eval_workflow",
    "async_math_eval_workflow",
)
"""Workflows that share `format_score_coef` with their reward."""
_SHARED_ARGUMENTS_BY_WORKFLOW: Final = dict.fromkeys(_BOXED_WORKFLOWS, ("format_score_coef",))
"""Arguments passed to the reward as well, by workflow."""
_ROW_FORMAT_FIELDS = (
    *("tools_key", "chosen_key", "rejected_key", "completion_key", "label_key"),
    *("enable_concatenated_multi_turn", "chat_template", "enable_thinking"),
)
"""Fields of a format used only for rows."""


def placed_tasksets(stage: StageSpec) -> Iterator[tuple[TasksetSpec, FieldPath]]:
    """Yields each taskset of a resolved stage, held-out ones included, with the path of its field in the file."""
    for number, taskset in enumerate(tasksets_of(stage)):
        yield taskset, (*_INPUT, "tasksets", number) if stage.more_tasksets else (*_INPUT, "taskset")
    for number, taskset in enumerate(stage.evals):
        yield taskset, (*_INPUT, "eval_tasksets", number)


def training_tasksets(
    experiment: Experiment, lengths: LengthLimits, repeat_times: int, notes: Notes
) -> tuple[TasksetSpec, ...]:
    """Returns the tasks to explore, of one or several tasksets; empty, with issues, if missing."""
    inputs = experiment.buffer.explorer_input
    if inputs.taskset is not None and inputs.tasksets:
        notes.wrong((*_INPUT, "tasksets"), "taskset and tasksets are both set", "keep one of them")
        return ()
    if inputs.taskset is None and not inputs.tasksets and experiment.mode == TRAIN:
        if not (experiment.buffer.total_steps or experiment.trainer.total_steps):
            problem = "is not set, and without a taskset here the number of steps per epoch is unknown"
            notes.wrong(("buffer", "total_steps"), problem, "set it in both files, or name the taskset here, too")
        if inputs.eval_tasksets:
            problem = "are set without a taskset: both belong to the explorers"
            notes.wrong((*_INPUT, "eval_tasksets"), problem, "leave them to the file with mode: explore")
        return ()
    if inputs.taskset is None and not inputs.tasksets and not pending_inputs(experiment):
        notes.wrong(_INPUT, "names no taskset to explore", "set buffer.explorer_input.taskset.path")
        return ()
    tasksets = inputs.tasksets or [inputs.taskset or Taskset()]
    specs: list[TasksetSpec] = []
    for index, taskset in enumerate(tasksets):
        path: FieldPath = (*_INPUT, "tasksets", index) if inputs.tasksets else (*_INPUT, "taskset")
        taskset_repeats = taskset.repeat_times
        if taskset_repeats is not None and taskset_repeats != repeat_times:
            notes.warn(
                f"{show(path[2:])}.repeat_times {taskset_repeats} is overridden by algorithm.repeat_times "
                f"{repeat_times}"
            )
        if taskset.format.category_key is not None:
            notes.warn(f"{show((*path, 'format', 'category_key'))} has no effect: only used for eval_tasksets")
        workflow = taskset.default_workflow_type or inputs.default_workflow_type
        if not experiment.explorer.collect_only:
            # Collected experiences are not trained here, so any temperature is allowed.
            _check_temperature(taskset, path, experiment, notes)
        name = f"taskset_{index}" if len(tasksets) > 1 else "taskset"
        spec = _spec(taskset, path, experiment, lengths, notes, name=name, repeat_times=repeat_times, workflow=workflow)
        if spec is None:
            continue
        if not experiment.explorer.collect_only:
            _warn_of_other_distribution(spec.sampling, path, notes)
        _add(spec, specs, path, "training tasksets", notes)
    return tuple(specs)


def _add(spec: TasksetSpec, specs: list[TasksetSpec], path: FieldPath, kind: str, notes: Notes) -> None:
    """Appends a taskset; a name used before is an issue."""
    if any(spec.name == earlier.name for earlier in specs):
        notes.wrong((*path, "name"), f"two {kind} are named {spec.name!r}", "choose unique names")
    specs.append(spec)


def conversation_taskset(experiment: Experiment, lengths: LengthLimits, repeat_times: int, notes: Notes) -> TasksetSpec:
    """Returns the taskset of a serving stage: without files, and with the default sampling for clients' requests."""
    inputs = experiment.buffer.explorer_input
    path: FieldPath = (*_INPUT, "taskset")
    taskset = inputs.taskset or Taskset()
    if not experiment.explorer.collect_only:
        _check_temperature(taskset, path, experiment, notes)
    sampling = _sampling(taskset, path, experiment, lengths, notes)
    if not experiment.explorer.collect_only:
        _warn_of_other_distribution(sampling, path, notes)
    return TasksetSpec(name="conversations", path="", repeat_times=repeat_times, sampling=sampling)


def eval_tasksets(experiment: Experiment, lengths: LengthLimits, notes: Notes) -> tuple[TasksetSpec, ...]:
    """Returns the held-out tasksets of a stage, with distinct names, resolved like tasksets for training."""
    inputs = experiment.buffer.explorer_input
    specs: list[TasksetSpec] = []
    for index, taskset in enumerate(inputs.eval_tasksets):
        path: FieldPath = (*_INPUT, "eval_tasksets", index)
        spec = _spec(
            taskset,
            path,
            experiment,
            lengths,
            notes,
            name=f"eval_taskset_{index}",
            repeat_times=taskset.repeat_times or 1,
            workflow=taskset.default_workflow_type or inputs.default_eval_workflow_type or inputs.default_workflow_type,
        )
        if spec is not None:
            if spec.repeat_times > 1 and not trainable(spec.sampling.temperature):
                notes.warn(
                    f"{show((*path, 'repeat_times'))} is {spec.repeat_times} at temperature 0: all answers are equal"
                )
            _add(spec, specs, path, "eval tasksets", notes)
    return tuple(specs)


def _spec(
    taskset: Taskset,
    path: FieldPath,
    experiment: Experiment,
    lengths: LengthLimits,
    notes: Notes,
    *,
    name: str,
    repeat_times: int,
    workflow: str | None,
) -> TasksetSpec | None:
    """Returns one taskset with rows, workflow, reward, selector and sampling; None, with an issue, if its path is
    missing.
    """
    paths: tuple[str, ...] = ()
    if queue := taskset.storage_type == "queue":
        _check_queue(taskset, path, experiment, notes)
    elif names_environment(taskset.path):
        paths = (str(taskset.path),)
        _check_environment(taskset, path, notes)
        workflow = ENVIRONMENT_WORKFLOW
    elif path in _FIRST and (inputs_of_tasks := pending_inputs(experiment)):
        paths = inputs_of_tasks
    elif not (paths := sources_of(taskset, path, notes, lacking="is required")):
        return None
    selector = check_selector(taskset.data_selector, path, experiment, notes)
    if workflow is None:
        workflow = _FALLBACK_WORKFLOW
        # A key names the workflow of each row; the fallback is for rows without a name.
        if not taskset.format.workflow_key:
            notes.warn(
                f"{show((*path, 'default_workflow_type'))} names no workflow: using {workflow}, which asks for "
                "step-by-step answers"
            )
    for key in _ROW_FORMAT_FIELDS:
        if getattr(taskset.format, key) != getattr(Format(), key):
            notes.warn(f"{show(path)}.format.{key} has no effect: only used for rows to train on, not for tasks")
    inputs: ExplorerInput = experiment.buffer.explorer_input
    reward = taskset.default_reward_fn_type or inputs.default_reward_fn_type
    _check_registered((*path, "default_workflow_type"), "workflow", workflow, experiment.sources, notes)
    reward_section: FieldPath = path if taskset.default_reward_fn_type else _INPUT
    _check_registered((*reward_section, "default_reward_fn_type"), "reward", reward, experiment.sources, notes)
    check_declared(REWARDS, reward or own_reward(workflow), taskset.reward_fn_args, (*path, "reward_fn_args"), notes)
    workflow_args, reward_args = _arguments(taskset, workflow, reward, path, experiment.sources, notes)
    return TasksetSpec(
        name=taskset.name or name,
        path=paths[0] if paths else "",
        more_paths=paths[1:],
        subset=taskset.subset_name,
        split=taskset.split,
        format=_format(taskset, inputs),
        repeat_times=repeat_times,
        workflow=workflow,
        workflow_args=workflow_args,
        reward=reward,
        reward_args=reward_args,
        sampling=_sampling(taskset, path, experiment, lengths, notes),
        selector=selector,
        selector_args=dict(taskset.data_selector.kwargs) if draws(selector) else {},
        feature_keys=tuple(taskset.data_selector.feature_keys) if draws(selector) else (),
        seed=taskset.data_selector.seed,
        limit_rows=taskset.limit_rows,
        max_retry_times=taskset.max_retry_times,
        rows=LAST_INDEX if queue else 0,
        queue=queue,
    )


def _format(taskset: Taskset, inputs: ExplorerInput) -> Format:
    """Returns the keys of a taskset's rows; unset fields come from settings for all tasksets."""
    spec = as_declared(taskset.format, Format)
    return msgspec.structs.replace(
        spec,
        system_prompt=inputs.system_prompt if spec.system_prompt is None else spec.system_prompt,
        reply_prefix=inputs.reply_prefix if spec.reply_prefix is None else spec.reply_prefix,
    )


def makes_own_tries(experiment: Experiment) -> bool:
    """True if every training taskset has a third-party workflow, which may attempt a task several times by itself."""
    explorer_input = experiment.buffer.explorer_input
    tasksets = explorer_input.tasksets or [explorer_input.taskset or Taskset()]
    workflows = [taskset.default_workflow_type or explorer_input.default_workflow_type for taskset in tasksets]
    return all(name is not None and not WORKFLOWS.builtin(name) for name in workflows)


def _check_environment(taskset: Taskset, path: FieldPath, notes: Notes) -> None:
    """Reports an invalid address, and another workflow beside an environment."""
    named = taskset.default_workflow_type
    if named not in (None, ENVIRONMENT_WORKFLOW):
        problem = f"is {named}, but the path is an environment, played by {ENVIRONMENT_WORKFLOW}"
        notes.wrong((*path, "default_workflow_type"), problem, "leave it out")
    command = taskset.workflow_args.get("environment_command")
    try:
        environment_address(str(taskset.path)).check(command if isinstance(command, list) else ())
    except ConfigError as error:
        notes.wrong((*path, "path"), error.what, error.fix)


def _check_queue(taskset: Taskset, path: FieldPath, experiment: Experiment, notes: Notes) -> None:
    """Reports settings impossible for a queue of tasks: a file, an order, other tasksets, or a stage without an end."""
    if path != (*_INPUT, "taskset"):
        problem = "is queue, but only a single buffer.explorer_input.taskset can be a queue"
        notes.wrong((*path, "storage_type"), problem, "write file")
    for name, fix in (("path", "leave it out: tasks are added by rftd tasks add"), ("limit_rows", "leave it out")):
        if getattr(taskset, name) is not None:
            notes.wrong((*path, name), "is set, but the tasks are a queue", fix)
    if taskset.data_selector.selector_type != "sequential":
        problem = f"is {taskset.data_selector.selector_type}, but a queue has the order in which tasks are added"
        notes.wrong((*path, "data_selector", "selector_type"), problem, "leave it out")
    if not (experiment.explorer.collect_only or experiment.buffer.total_steps or experiment.trainer.total_steps):
        problem = "is required: the number of tasks in a queue is not known in advance"
        fix = "set an upper bound of the steps; rftd tasks end ends it after the last task"
        notes.wrong(("buffer", "total_steps"), problem, fix)


def _arguments(
    taskset: Taskset, workflow: str, reward: str | None, path: FieldPath, sources: Mapping[str, str], notes: Notes
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the arguments of workflow and reward; upstream's `math_boxed_workflow` passes arguments to its reward."""
    arguments = dict(taskset.workflow_args)
    of_reward = dict(taskset.reward_fn_args)
    where = (*path, "workflow_args")
    if workflow in _BOXED_WORKFLOWS:
        shared_arguments: dict[str, Any] = {name: arguments[name] for name in _BOXED_ARGUMENTS if name in arguments}
        arguments.pop("format_score_coef", None)
        scorer = reward or own_reward(workflow)
        if scorer != "math_boxed_reward":
            if "format_score_coef" in shared_arguments:
                notes.warn(f"{show((*where, 'format_score_coef'))} has no effect: {scorer} scores")
        else:
            coefficient = {name: argument for name, argument in shared_arguments.items() if name not in arguments}
            check_declared(REWARDS, scorer, coefficient, where, notes)
            of_reward = {**shared_arguments, **of_reward}
    if names_environment(taskset.path):  # as the daemon writes it, beside the file with the environment's rows
        arguments["environment"] = taskset.path
    check_declared(
        WORKFLOWS, workflow, arguments, where, notes, extra_names=_SHARED_ARGUMENTS_BY_WORKFLOW.get(workflow, ())
    )
    if (agent := agent_source(workflow, arguments)) is not None:
        check_own_source((*where, "agent"), agent, sources, notes)
    return arguments, of_reward


def _check_registered(path: FieldPath, kind: str, name: str | None, sources: Mapping[str, str], notes: Notes) -> None:
    """Refuses an unknown workflow or reward, or a Python file that is missing or unfit."""
    if name is None:
        return
    if (source := source_name(name)) is not None:
        check_own_source(path, source, sources, notes)
        return
    plugins: Plugins[Any] = WORKFLOWS if kind == "workflow" else REWARDS
    try:
        # Whether a class is installed is known to the daemon alone, which says so at submission.
        if plugins is REWARDS or name in plugins.names() or class_path(name) is None:
            check = check_workflow if plugins is WORKFLOWS else plugins.check
            check(name)
    except ConfigError as error:
        notes.wrong(path, f"{error.where}: {error.what}" if error.where else error.what, error.fix, Unsupported)


def _check_temperature(taskset: Taskset, path: FieldPath, experiment: Experiment, notes: Notes) -> None:
    """Refuses greedy answers: all are equal with probability 1, so there is nothing to learn."""
    taskset_temperature = taskset.rollout_args.temperature
    default_temperature = experiment.model.temperature
    if not trainable(default_temperature if taskset_temperature is None else taskset_temperature):
        of_rollouts = experiment.explorer.rollout_model.temperature is not None
        section: FieldPath = ("explorer", "rollout_model") if of_rollouts else ("model",)
        field = (*section, "temperature") if taskset_temperature is None else (*path, "rollout_args", "temperature")
        temperature = default_temperature if taskset_temperature is None else taskset_temperature
        problem = f"is {temperature:g}, but the answers of this taskset are trained"
        notes.wrong(field, problem, TRAINED_FIX)


def _warn_of_other_distribution(sampling: SamplingSpec, path: FieldPath, notes: Notes) -> None:
    """Warns of answers sampled from one distribution and trained as if sampled from another."""
    if settings := unlike_the_policy(sampling):
        notes.warn(
            f"{show(path)} samples with {', '.join(settings)}, but trains on log-probabilities without them: "
            "ratios and gradients are biased"
            + ("" if sampling.processed_logprobs else " (rollout_args.logprobs: processed records by how much)")
        )


def _sampling(
    taskset: Taskset, path: FieldPath, experiment: Experiment, lengths: LengthLimits, notes: Notes
) -> SamplingSpec:
    """Returns the sampling of a taskset: `rollout_args`, with unset fields from `model`."""
    args = taskset.rollout_args
    model = experiment.model
    # The response length is a bound of the model and of the buffers: a taskset may only lower the bound.
    longest = args.max_tokens or lengths.response
    if longest > lengths.response:
        notes.warn(f"rollout_args.max_tokens {longest} exceeds max_response_tokens: {lengths.response} is used")
        longest = lengths.response
    shortest = args.min_tokens if args.min_tokens is not None else min(lengths.min_response, longest)
    if shortest > longest:
        notes.wrong((*path, "rollout_args", "min_tokens"), f"is {shortest}, more than max_tokens {longest}")
    return SamplingSpec(
        temperature=args.temperature if args.temperature is not None else model.temperature,
        top_p=args.top_p if args.top_p is not None else model.top_p,
        top_k=args.top_k if args.top_k is not None else model.top_k,
        max_tokens=longest,
        min_tokens=shortest,
        stop=tuple(args.stop),
        min_p=args.min_p,
        repetition_penalty=model.repetition_penalty if args.repetition_penalty is None else args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        # Sorted: the specification is hashed and compared, and the order of a mapping has no meaning.
        logit_bias=tuple(sorted(args.logit_bias.items())),
        ignore_eos=args.ignore_eos or experiment.explorer.rollout_model.ignore_eos,
        processed_logprobs=args.logprobs == "processed",
    )


def check_selector(section: DataSelector, taskset: FieldPath, experiment: Experiment, notes: Notes) -> str:
    """Returns the selector, after checking name, columns and arguments.

    Held-out rows are all answered in order: the selector is `sequential`.
    """
    path: FieldPath = (*taskset, "data_selector")
    selector = section.selector_type
    if "eval_tasksets" in taskset:
        idle = [field for field in ("feature_keys", "kwargs") if getattr(section, field)]
        for field in ["selector_type", *idle] if selector != "sequential" else idle:
            notes.warn(f"{show((*path, field))} has no effect: held-out rows are answered in order")
        return "sequential"
    try:
        check_name(selector)
    except ConfigError as error:
        notes.wrong((*path, "selector_type"), error.what, error.fix, Unsupported)
        return selector
    if not draws(selector):
        for field in ("feature_keys", "kwargs"):
            if getattr(section, field):
                notes.warn(f"{show((*path, field))} has no effect: {selector} uses only the positions of rows")
        return selector
    check_declared(SELECTORS, selector, section.kwargs, (*path, "kwargs"), notes)
    if not SELECTORS.builtin(selector):
        return selector  # imported by the daemon before acceptance
    try:
        SELECTORS.load(selector).check_keys(section.feature_keys)
    except ConfigError as error:
        notes.wrong((*path, "feature_keys"), error.what, error.fix)
    if experiment.deterministic and follows_rewards(selector):
        problem = f"is {selector}, whose draws depend on the order of rollouts, but the experiment is deterministic"
        fix = "write sequential, shuffle, random or offline_easy2hard, or deterministic: false"
        notes.wrong((*path, "selector_type"), problem, fix)
    return selector
