"""Tasksets, with the workflow, the reward and the sampling that hold for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Notes, Unsupported
from rftd.daemon.config.resolve.arguments import check_declared
from rftd.daemon.config.resolve.model import LengthLimits
from rftd.daemon.config.resolve.rows import sources_of
from rftd.daemon.config.schema.buffer import DataSelector, ExplorerInput, Taskset
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import as_declared
from rftd.ops.errors import ConfigError
from rftd.streams.log.bounds import LAST_INDEX
from rftd.streams.spec.row_format import Format
from rftd.streams.spec.spec import SamplingSpec, StageSpec, TasksetSpec
from rftd.streams.spec.split_submission import TRAIN
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.control.selectors.registry import SELECTORS, draws, follows_rewards
from rftd.workers.control.selectors.registry import check_selector as check_name
from rftd.workers.generation.sampling import TRAINED_FIX, trainable, unlike_the_policy
from rftd.workers.workflows.registry import WORKFLOWS, own_reward
from rftd.workers.workflows.rewards.registry import REWARDS

_INPUT: FieldPath = ("buffer", "explorer_input")
_FALLBACK_WORKFLOW = "math_workflow"
_OF_BOXED: Final = ("with_think", "format_score_coef")
"""Arguments that a workflow and its reward both have."""
_BESIDE: Final = dict.fromkeys(("math_boxed_workflow", "async_math_boxed_workflow"), ("format_score_coef",))
_OF_ROWS = (
    *("tools_key", "chosen_key", "rejected_key", "completion_key", "label_key"),
    *("enable_concatenated_multi_turn", "chat_template", "enable_thinking"),
)


def placed_tasksets(stage: StageSpec) -> Iterator[tuple[TasksetSpec, FieldPath]]:
    """The tasksets and evaluations of a resolved stage, each with its field of the file."""
    for number, taskset in enumerate(tasksets_of(stage)):
        yield taskset, (*_INPUT, "tasksets", number) if stage.more_tasksets else (*_INPUT, "taskset")
    for number, taskset in enumerate(stage.evals):
        yield taskset, (*_INPUT, "eval_tasksets", number)


def training_tasksets(
    experiment: Experiment, lengths: LengthLimits, repeat_times: int, notes: Notes
) -> tuple[TasksetSpec, ...]:
    """The tasks to explore, of one taskset or of several; none after saying what is missing."""
    inputs = experiment.buffer.explorer_input
    if inputs.taskset is not None and inputs.tasksets:
        notes.wrong((*_INPUT, "tasksets"), "taskset and tasksets are both given", "keep one of them")
        return ()
    if inputs.taskset is None and not inputs.tasksets and experiment.mode == TRAIN:
        if not (experiment.buffer.total_steps or experiment.trainer.total_steps):
            what = "is not given, and without a taskset here nobody knows how many steps its epochs are"
            notes.wrong(("buffer", "total_steps"), what, "set it in both files, or name the taskset here, too")
        if inputs.eval_tasksets:
            what = "are given without a taskset: both are the explorers'"
            notes.wrong((*_INPUT, "eval_tasksets"), what, "leave them to the file with mode: explore")
        return ()
    if inputs.taskset is None and not inputs.tasksets:
        notes.wrong(_INPUT, "names no taskset to explore", "set buffer.explorer_input.taskset.path")
        return ()
    tasksets = inputs.tasksets or [inputs.taskset or Taskset()]
    specs: list[TasksetSpec] = []
    for index, taskset in enumerate(tasksets):
        path: FieldPath = (*_INPUT, "tasksets", index) if inputs.tasksets else (*_INPUT, "taskset")
        own = taskset.repeat_times
        if own is not None and own != repeat_times:
            notes.warn(f"{show(path[2:])}.repeat_times {own} is overridden by algorithm.repeat_times {repeat_times}")
        if taskset.format.category_key is not None:
            notes.warn(f"{show((*path, 'format', 'category_key'))} has no effect: it is for eval_tasksets")
        workflow = taskset.default_workflow_type or inputs.default_workflow_type
        if not experiment.explorer.collect_only:
            # What is only collected is not trained here, so any temperature will do.
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
    if any(spec.name == other.name for other in specs):
        notes.wrong((*path, "name"), f"two {kind} are named {spec.name!r}", "give each its own name")
    specs.append(spec)


def conversation_taskset(experiment: Experiment, lengths: LengthLimits, repeat_times: int, notes: Notes) -> TasksetSpec:
    """The taskset of a stage that serves: no file, and the sampling that holds where a client asks for no other."""
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
    """The held-out tasksets; their names are distinct."""
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
                notes.warn(f"{show((*path, 'repeat_times'))} is {spec.repeat_times} at temperature 0: all are the same")
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
    paths: tuple[str, ...] = ()
    if queue := taskset.storage_type == "queue":
        _check_queue(taskset, path, experiment, notes)
    elif (taskset.path is None and _makes_tasks(experiment)) or not (
        paths := sources_of(taskset, path, notes, lacking="is required")
    ):
        return None
    selector = check_selector(taskset.data_selector, path, experiment, notes)
    if workflow is None:
        workflow = _FALLBACK_WORKFLOW
        # A key names each row's own, and this one is for rows that name none.
        if not taskset.format.workflow_key:
            notes.warn(
                f"{show((*path, 'default_workflow_type'))} names no workflow: {workflow} asks for a worked answer"
            )
    for key in _OF_ROWS:
        if getattr(taskset.format, key) != getattr(Format(), key):
            notes.warn(f"{show(path)}.format.{key} has no effect: it is for rows to train on, not for tasks")
    inputs: ExplorerInput = experiment.buffer.explorer_input
    reward = taskset.default_reward_fn_type or inputs.default_reward_fn_type
    _known((*path, "default_workflow_type"), "workflow", workflow, notes)
    own: FieldPath = path if taskset.default_reward_fn_type else _INPUT
    _known((*own, "default_reward_fn_type"), "reward", reward, notes)
    check_declared(REWARDS, reward or own_reward(workflow), taskset.reward_fn_args, (*path, "reward_fn_args"), notes)
    workflow_args, reward_args = _arguments(taskset, workflow, reward, path, notes)
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
    """The keys of a taskset's rows; what it leaves open may be written for all tasksets."""
    spec = as_declared(taskset.format, Format)
    return msgspec.structs.replace(
        spec,
        system_prompt=inputs.system_prompt if spec.system_prompt is None else spec.system_prompt,
        reply_prefix=inputs.reply_prefix if spec.reply_prefix is None else spec.reply_prefix,
    )


def _makes_tasks(experiment: Experiment) -> bool:
    """True if a pipeline is to make the tasks, which is refused by itself."""
    pipeline = experiment.data_processor.task_pipeline
    return pipeline is not None and bool(pipeline.operators)


def makes_own_tries(experiment: Experiment) -> bool:
    """True if every taskset that is trained on has a workflow of another party, which may try a task several times."""
    explorer_input = experiment.buffer.explorer_input
    tasksets = explorer_input.tasksets or [explorer_input.taskset or Taskset()]
    workflows = [taskset.default_workflow_type or explorer_input.default_workflow_type for taskset in tasksets]
    return all(name is not None and not WORKFLOWS.builtin(name) for name in workflows)


def _check_queue(taskset: Taskset, path: FieldPath, experiment: Experiment, notes: Notes) -> None:
    """Finds what a queue of tasks cannot have: a file, an order of its own, company, or a stage without an end."""
    if path != (*_INPUT, "taskset"):
        what = "is queue, and only buffer.explorer_input.taskset, which is alone, can be one"
        notes.wrong((*path, "storage_type"), what, "write file")
    for name, fix in (("path", "leave it out: tasks come by rftd tasks add"), ("limit_rows", "leave it out")):
        if getattr(taskset, name) is not None:
            notes.wrong((*path, name), "is given, and the tasks are a queue", fix)
    if taskset.data_selector.selector_type != "sequential":
        what = f"is {taskset.data_selector.selector_type}, and a queue has the order in which its tasks are added"
        notes.wrong((*path, "data_selector", "selector_type"), what, "leave it out")
    if not (experiment.explorer.collect_only or experiment.buffer.total_steps or experiment.trainer.total_steps):
        what = "is required: how many tasks a queue will have, nobody knows"
        fix = "say after how many steps it ends at the latest; rftd tasks end ends it with its last task"
        notes.wrong(("buffer", "total_steps"), what, fix)


def _arguments(
    taskset: Taskset, workflow: str, reward: str | None, path: FieldPath, notes: Notes
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of the workflow and of its reward; upstream's `math_boxed_workflow` hands its own to its reward."""
    arguments = dict(taskset.workflow_args)
    of_reward = dict(taskset.reward_fn_args)
    where = (*path, "workflow_args")
    if workflow.removeprefix("async_") == "math_boxed_workflow":
        handed: dict[str, Any] = {name: arguments[name] for name in _OF_BOXED if name in arguments}
        arguments.pop("format_score_coef", None)
        scorer = reward or own_reward(workflow)
        if scorer != "math_boxed_reward":
            if "format_score_coef" in handed:
                notes.warn(f"{show((*where, 'format_score_coef'))} has no effect: {scorer} scores")
        else:
            coefficient = {name: value for name, value in handed.items() if name not in arguments}
            check_declared(REWARDS, scorer, coefficient, where, notes)
            of_reward = {**handed, **of_reward}
    check_declared(WORKFLOWS, workflow, arguments, where, notes, beside=_BESIDE.get(workflow, ()))
    return arguments, of_reward


def _known(path: FieldPath, kind: str, name: str | None, notes: Notes) -> None:
    if name is None:
        return
    try:
        (WORKFLOWS if kind == "workflow" else REWARDS).check(name)
    except ConfigError as error:
        notes.wrong(path, error.what, error.fix, Unsupported)


def _check_temperature(taskset: Taskset, path: FieldPath, experiment: Experiment, notes: Notes) -> None:
    """Refuses greedy answers, which are all alike and have probability 1: nothing can be learned from them."""
    own = taskset.rollout_args.temperature
    usual = experiment.model.temperature
    if not trainable(usual if own is None else own):
        of_rollouts = experiment.explorer.rollout_model.temperature is not None
        said: FieldPath = ("explorer", "rollout_model") if of_rollouts else ("model",)
        field = (*said, "temperature") if own is None else (*path, "rollout_args", "temperature")
        what = f"is {usual if own is None else own:g}, and the answers of this taskset are trained"
        notes.wrong(field, what, TRAINED_FIX)


def _warn_of_other_distribution(sampling: SamplingSpec, path: FieldPath, notes: Notes) -> None:
    """Warns of answers that are drawn from one distribution and trained as if they came from another."""
    if settings := unlike_the_policy(sampling):
        notes.warn(
            f"{show(path)} draws with {', '.join(settings)}, and trains on log-probabilities without them: "
            "ratios and gradients are off by what they change"
            + ("" if sampling.processed_logprobs else " (rollout_args.logprobs: processed records how much that is)")
        )


def _sampling(
    taskset: Taskset, path: FieldPath, experiment: Experiment, lengths: LengthLimits, notes: Notes
) -> SamplingSpec:
    """The sampling of a taskset: `rollout_args`, with what it leaves open taken from `model`."""
    args = taskset.rollout_args
    model = experiment.model
    # The length of responses is a bound of the model and of the buffers: a taskset may only lower it.
    longest = args.max_tokens or lengths.response
    if longest > lengths.response:
        notes.warn(f"rollout_args.max_tokens {longest} is over max_response_tokens: {lengths.response} is used")
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
        # Sorted: the specification is hashed and compared, and a mapping in another order asks for the same.
        logit_bias=tuple(sorted(args.logit_bias.items())),
        ignore_eos=args.ignore_eos or experiment.explorer.rollout_model.ignore_eos,
        processed_logprobs=args.logprobs == "processed",
    )


def check_selector(given: DataSelector, taskset: FieldPath, experiment: Experiment, notes: Notes) -> str:
    """The selector, after finding what is wrong with its name, its columns and its arguments.

    Held-out rows are all answered, in order: their selector is `sequential`.
    """
    path: FieldPath = (*taskset, "data_selector")
    selector = given.selector_type
    if "eval_tasksets" in taskset:
        idle = [field for field in ("feature_keys", "kwargs") if getattr(given, field)]
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
            if getattr(given, field):
                notes.warn(f"{show((*path, field))} has no effect: {selector} goes by the places of rows")
        return selector
    check_declared(SELECTORS, selector, given.kwargs, (*path, "kwargs"), notes)
    if not SELECTORS.builtin(selector):
        return selector  # the daemon imports it before it accepts
    try:
        SELECTORS.load(selector).check_keys(given.feature_keys)
    except ConfigError as error:
        notes.wrong((*path, "feature_keys"), error.what, error.fix)
    if experiment.deterministic and follows_rewards(selector):
        what = f"is {selector}, whose draws depend on which rollouts end first, and the experiment is deterministic"
        fix = "write sequential, shuffle, random or offline_easy2hard, or deterministic: false"
        notes.wrong((*path, "selector_type"), what, fix)
    return selector
