"""Tasksets and datasets, with the workflow, the reward and the sampling that hold for each."""

from __future__ import annotations

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Contradiction, Unsupported
from rftd.daemon.config.resolve.lengths import LengthLimits
from rftd.daemon.config.resolve.notes import Notes
from rftd.daemon.config.resolve.plugin_arguments import check_declared
from rftd.daemon.config.schema.buffer import ExperienceBuffer, ExplorerInput
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.taskset import Format, Taskset
from rftd.ops.errors import ConfigError
from rftd.streams.spec import FormatSpec, SamplingSpec, TasksetSpec
from rftd.workers.algorithms.definition import AlgorithmDefinition
from rftd.workers.rollout.rewards.registry import REWARDS
from rftd.workers.rollout.sampling import TRAINED_FIX, trainable, unlike_the_policy
from rftd.workers.rollout.workflows.registry import WORKFLOWS, own_reward
from rftd.workers.training.losses.registry import compares_pairs

_INPUT: FieldPath = ("buffer", "explorer_input")
_FALLBACK_WORKFLOW = "math_workflow"
_SELECTORS = ("sequential", "shuffle")
_OF_ROWS = (
    *("tools_key", "chosen_key", "rejected_key", "completion_key", "label_key"),
    *("enable_concatenated_multi_turn", "chat_template", "enable_thinking"),
)


def training_taskset(
    experiment: Experiment, lengths: LengthLimits, repeat_times: int, notes: Notes
) -> TasksetSpec | None:
    """The tasks to explore; None after saying what is missing."""
    given = experiment.buffer.explorer_input
    if given.taskset is not None and given.tasksets:
        notes.wrong((*_INPUT, "tasksets"), "taskset and tasksets are both given", "keep one of them")
        return None
    if len(given.tasksets) > 1:
        what = f"has {len(given.tasksets)} training tasksets, and rftd explores one for now"
        notes.wrong((*_INPUT, "tasksets"), what, "keep the first, or join the files into one", Unsupported)
        return None
    path: FieldPath = (*_INPUT, "tasksets", 0) if given.tasksets else (*_INPUT, "taskset")
    taskset = given.tasksets[0] if given.tasksets else given.taskset
    if taskset is None:
        notes.wrong(_INPUT, "names no taskset to explore", "set buffer.explorer_input.taskset.path")
        return None
    if taskset.repeat_times is not None and taskset.repeat_times != repeat_times:
        notes.warn(f"taskset.repeat_times {taskset.repeat_times} gives way to algorithm.repeat_times {repeat_times}")
    workflow = taskset.default_workflow_type or given.default_workflow_type
    if not experiment.explorer.collect_only:
        _check_temperature(taskset, path, experiment, notes)
    spec = _spec(
        taskset, path, experiment, lengths, notes, name="taskset", repeat_times=repeat_times, workflow=workflow
    )
    if spec is not None and not experiment.explorer.collect_only:
        _warn_of_other_distribution(spec.sampling, path, notes)
    return spec


def eval_tasksets(experiment: Experiment, lengths: LengthLimits, notes: Notes) -> tuple[TasksetSpec, ...]:
    """The held-out tasksets; their names are distinct."""
    given = experiment.buffer.explorer_input
    specs: list[TasksetSpec] = []
    for index, taskset in enumerate(given.eval_tasksets):
        path: FieldPath = (*_INPUT, "eval_tasksets", index)
        spec = _spec(
            taskset,
            path,
            experiment,
            lengths,
            notes,
            name=f"eval_taskset_{index}",
            repeat_times=taskset.repeat_times or 1,
            workflow=taskset.default_workflow_type or given.default_eval_workflow_type or given.default_workflow_type,
        )
        if spec is None:
            continue
        if any(spec.name == other.name for other in specs):
            notes.wrong((*path, "name"), f"two eval tasksets are named {spec.name!r}", "give each its own name")
        specs.append(spec)
    return tuple(specs)


def dataset(experiment: Experiment, definition: AlgorithmDefinition, loss: str, notes: Notes) -> TasksetSpec | None:
    """The rows that a `train` stage learns from, of its algorithm's kind; None after saying what is missing."""
    path: FieldPath = ("buffer", "trainer_input", "experience_buffer")
    buffer = experiment.buffer.trainer_input.experience_buffer
    schema = buffer.schema_type if buffer.schema_type in definition.other_rows else definition.rows
    known = (definition.rows, *definition.other_rows)
    if schema == "kto" and compares_pairs(loss):
        what = f"is kto, single responses with a label, and policy_loss_fn {loss} compares two"
        notes.wrong((*path, "schema_type"), what, "leave policy_loss_fn out, or write schema_type: dpo", Contradiction)
    return rows_of(buffer, path, experiment.seed, notes, name="experience_buffer", schema=schema, known=known)


def rows_of(
    buffer: ExperienceBuffer,
    path: FieldPath,
    seed: int,
    notes: Notes,
    *,
    name: str,
    schema: str = "sft",
    known: tuple[str, ...] = ("sft",),
) -> TasksetSpec | None:
    """The rows that a buffer names, to be trained as they are; None after saying what is missing.

    `schema` is what they are, `known` all that they might be for who trains on them.
    """
    if not isinstance(buffer.path, str) or not buffer.path:
        notes.wrong((*path, "path"), "needs the path of a dataset", "set it to a folder or .jsonl file")
        return None
    if "://" in buffer.path or buffer.storage_type == "sql":
        what = "rows to train on are read from files"
        notes.wrong((*path, "path"), what, "set it to a folder or .jsonl file", Unsupported)
        return None
    if buffer.schema_type not in ("auto", schema):
        what = f"is {buffer.schema_type}, but what trains on these rows takes {' or '.join(known)}"
        notes.wrong((*path, "schema_type"), what, "leave it out, or change algorithm.algorithm_type")
    if buffer.format.enable_concatenated_multi_turn and (schema, buffer.format.prompt_type) != ("sft", "messages"):
        notes.warn(f"{show(path)}.format.enable_concatenated_multi_turn has no effect: it is for sft and messages")
    return TasksetSpec(
        name=buffer.name or name,
        path=buffer.path,
        subset=buffer.subset_name,
        split=buffer.split,
        format=_format(buffer.format),
        schema=schema,
        seed=seed,
        limit_rows=buffer.limit_rows,
    )


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
    if not taskset.path:
        notes.wrong((*path, "path"), "is required", "set it to the folder or .jsonl file that holds the tasks")
        return None
    if taskset.storage_type != "file":
        what = f"{taskset.storage_type} is read, but tasks come from files only"
        notes.wrong((*path, "storage_type"), what, "write file", Unsupported)
    selector = taskset.data_selector.selector_type
    if selector not in _SELECTORS:
        what = f"{selector} cannot be run yet"
        notes.wrong((*path, "data_selector", "selector_type"), what, f"write {' or '.join(_SELECTORS)}", Unsupported)
    if workflow is None and taskset.format.workflow_key:
        workflow = _FALLBACK_WORKFLOW  # for rows that do not name their own
    if workflow is None:
        notes.wrong(
            (*path, "default_workflow_type"), "no workflow is named", "write default_workflow_type: math_workflow"
        )
        return None
    for key in _OF_ROWS:
        if getattr(taskset.format, key) != Format.model_fields[key].default:
            notes.warn(f"{show(path)}.format.{key} has no effect: it is for rows to train on, not for tasks")
    given: ExplorerInput = experiment.buffer.explorer_input
    reward = taskset.default_reward_fn_type or given.default_reward_fn_type
    _known((*path, "default_workflow_type"), "workflow", workflow, notes)
    _known((*path, "default_reward_fn_type"), "reward", reward, notes)
    check_declared(REWARDS, reward or own_reward(workflow), taskset.reward_fn_args, (*path, "reward_fn_args"), notes)
    return TasksetSpec(
        name=taskset.name or name,
        path=taskset.path,
        subset=taskset.subset_name,
        split=taskset.split,
        format=_format(taskset.format),
        repeat_times=repeat_times,
        workflow=workflow,
        workflow_args=taskset.workflow_args,
        reward=reward,
        reward_args=taskset.reward_fn_args,
        sampling=_sampling(taskset, path, experiment, lengths, notes),
        selector=selector,
        seed=taskset.data_selector.seed,
        limit_rows=taskset.limit_rows,
        max_retry_times=taskset.max_retry_times,
    )


def _known(path: FieldPath, kind: str, name: str | None, notes: Notes) -> None:
    if name is None:
        return
    try:
        (WORKFLOWS if kind == "workflow" else REWARDS).check(name)
    except ConfigError as error:
        notes.wrong(path, error.what, error.fix, Unsupported)


def _format(given: Format) -> FormatSpec:
    return FormatSpec(
        prompt_type=given.prompt_type,
        prompt_key=given.prompt_key,
        response_key=given.response_key,
        messages_key=given.messages_key,
        system_prompt=given.system_prompt,
        system_prompt_key=given.system_prompt_key,
        reply_prefix=given.reply_prefix,
        workflow_key=given.workflow_key,
        reward_fn_key=given.reward_fn_key,
        tools_key=given.tools_key,
        chosen_key=given.chosen_key,
        rejected_key=given.rejected_key,
        completion_key=given.completion_key,
        label_key=given.label_key,
        enable_concatenated_multi_turn=given.enable_concatenated_multi_turn,
        chat_template=given.chat_template,
        enable_thinking=given.enable_thinking,
    )


def _check_temperature(taskset: Taskset, path: FieldPath, experiment: Experiment, notes: Notes) -> None:
    """Greedy answers are all alike and have probability 1: nothing can be learned from them."""
    own = taskset.rollout_args.temperature
    usual = experiment.model.temperature
    if not trainable(usual if own is None else own):
        field = ("model", "temperature") if own is None else (*path, "rollout_args", "temperature")
        what = f"is {usual if own is None else own:g}, and the answers of this taskset are trained"
        notes.wrong(field, what, TRAINED_FIX)


def _warn_of_other_distribution(sampling: SamplingSpec, path: FieldPath, notes: Notes) -> None:
    """Answers are drawn from one distribution and trained as if they came from another."""
    if settings := unlike_the_policy(sampling):
        notes.warn(
            f"{show(path)} draws with {', '.join(settings)}, and trains on log-probabilities without them: "
            "ratios and gradients are off by what they change"
            + ("" if sampling.processed_logprobs else " (rollout_args.logprobs: processed records how much that is)")
        )


def _sampling(
    taskset: Taskset, path: FieldPath, experiment: Experiment, lengths: LengthLimits, notes: Notes
) -> SamplingSpec:
    """What `rollout_args` leaves open comes from `model`."""
    args = taskset.rollout_args
    model = experiment.model
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
        logit_bias=tuple(sorted(args.logit_bias.items())),
        ignore_eos=args.ignore_eos,
        processed_logprobs=args.logprobs == "processed",
    )
