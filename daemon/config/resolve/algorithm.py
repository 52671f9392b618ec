"""The algorithm's defaults overridden by the user's parts, Trinity-RFT's names of arguments, and the optimizer."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Contradiction, Notes, Unsupported, WrongValue
from rftd.daemon.config.resolve.arguments import check_declared, check_struct, refuse_made
from rftd.daemon.config.resolve.correction import resolve_correction
from rftd.daemon.config.resolve.own_code import check_own_source
from rftd.daemon.config.resolve.tasksets import makes_own_tries
from rftd.daemon.config.schema.algorithm import Algorithm
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import as_declared
from rftd.daemon.config.schema.trainer import Trainer
from rftd.ops.errors import ConfigError
from rftd.ops.plugins import Plugins
from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import AlgorithmSpec
from rftd.workers.learning.algorithms import registry
from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.learning.algorithms.advantages.registry import ADVANTAGES
from rftd.workers.learning.algorithms.definition import AlgorithmDefinition
from rftd.workers.learning.losses import aggregation, sft
from rftd.workers.learning.losses.entropy_losses import ENTROPY_LOSSES
from rftd.workers.learning.losses.kl_losses import KL_LOSSES
from rftd.workers.learning.losses.loss_source import outlined_loss
from rftd.workers.learning.losses.policy_loss import LossNeeds
from rftd.workers.learning.losses.registry import POLICY_LOSSES, compares_pairs, tells_labels
from rftd.workers.learning.token_advantages.penalised import check_penalised
from rftd.workers.workflows.source import SourceName, source_name

PARTS: Final[dict[str, Plugins[Any]]] = {
    "advantage": ADVANTAGES,
    "policy_loss": POLICY_LOSSES,
    "kl_penalty": KL_LOSSES,
    "kl_loss": KL_LOSSES,
    "entropy_loss": ENTROPY_LOSSES,
}
"""Plug-ins of each part of an objective."""


class _Default(msgspec.Struct):
    """Arguments of the strategy `default`."""


class _StalenessControl(msgspec.Struct):
    """Arguments of `staleness_control`, in weight versions."""

    max_staleness: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Largest staleness of a trained experience; None: the policy's bound."""


class _Mix(msgspec.Struct):
    """Arguments of `mix`: the share of expert rows, and the auxiliary buffer with the rows."""

    expert_data_ratio: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.5
    """Share of a batch that consists of expert rows."""
    sft_dataset_name: Annotated[str, msgspec.Meta(min_length=1)] = "sft_dataset"
    """Name of the auxiliary buffer with the rows."""


STRATEGIES: Final[Mapping[str, type[msgspec.Struct]]] = {
    "default": _Default,
    "staleness_control": _StalenessControl,
    "mix": _Mix,
}
"""Arguments of each sample strategy."""
_STRATEGY_ARGS: Final[FieldPath] = ("algorithm", "sample_strategy_args")
"""Field of the sample strategy's arguments."""
_ARGS: Final[FieldPath] = ("algorithm", "policy_loss_fn_args")
"""Field of the policy loss's arguments."""
_RENAMED: Final[Mapping[str, Mapping[str, str]]] = {"ppo": {"delta_sequence_masking": "delta"}}
"""rftd's name of each of Trinity-RFT's arguments, by loss."""
_MODES: Final[Mapping[str, tuple[str, ...]]] = {"mix": ("grpo_loss_agg_mode",), "mix_chord": ("grpo_loss_agg_mode",)}
"""Values of `loss_agg_mode` that mean the aggregation over rollouts, by loss."""


def find_algorithm(section: Algorithm, notes: Notes) -> AlgorithmDefinition | None:
    """Returns the definition of the algorithm; None, with an issue, for an unknown algorithm."""
    kind = section.algorithm_type
    try:
        return registry.lookup(kind)
    except ConfigError as error:
        notes.wrong(("algorithm", "algorithm_type"), error.what, error.fix, WrongValue)
        return None


def resolve_algorithm(
    experiment: Experiment, definition: AlgorithmDefinition, total_steps: int, notes: Notes
) -> AlgorithmSpec:
    """Returns the complete objective of one stage: every part with arguments, the sample strategy, corrections and
    optimizer.
    """
    section = experiment.algorithm
    parts: dict[str, Any] = {}
    instances: dict[str, Any] = {}
    mode: str | None = None
    for part_name, plugins in PARTS.items():
        # A part named by the user has separate defaults: the defaults of the algorithm's part do not apply.
        default_name: str = getattr(definition, part_name)
        name: str = getattr(section, f"{part_name}_fn") or default_name
        args: dict[str, Any] = getattr(section, f"{part_name}_fn_args") or {}
        if part_name == "policy_loss":
            args, mode = policy_loss_args(section, name, notes)
        default: dict[str, Any] = getattr(definition, f"{part_name}_args") if name == default_name else {}
        parts[part_name] = name
        parts[f"{part_name}_args"] = {**default, **args}
        if part_name == "policy_loss" and (source := source_name(name)) is not None:
            instances[part_name] = _outlined(source, experiment.sources, notes)
        else:
            instances[part_name] = made_part(part_name, plugins, name, parts[f"{part_name}_args"], notes)
    loss_needs = LossNeeds.of(instances["policy_loss"])
    own_mode = loss_needs.loss_agg_mode
    if not definition.needs.rollouts and loss_needs.old_logprobs:
        problem = (
            f"{parts['policy_loss']} compares with the log-probabilities of rollouts, and {definition.name} has rows"
        )
        notes.wrong(
            ("algorithm", "policy_loss_fn"), problem, f"leave it out for {definition.policy_loss}", Contradiction
        )
    if POLICY_LOSSES.builtin(parts["policy_loss"]):
        _check_pairs(parts["policy_loss"], definition, notes)
    if section.kl_penalty_place == "before":
        _check_penalty_place(instances["advantage"], parts, notes)
    greedy = int(getattr(instances["advantage"], "greedy_rollouts", 0))
    strategy, strategy_args = _strategy(section, definition, notes)
    return AlgorithmSpec(
        kind=section.algorithm_type,
        repeat_times=_repeat_times(experiment, definition, notes, greedy),
        greedy_rollouts=greedy,
        **parts,
        kl_penalty_place=section.kl_penalty_place,
        loss_agg_mode=mode or own_mode or definition.loss_agg_mode,
        loss_scale_factor=section.loss_scale_factor,
        sample_strategy=strategy,
        sample_strategy_args=strategy_args,
        correction=resolve_correction(section, from_rollouts=definition.needs.rollouts, notes=notes),
        optimizer=_optimizer(section.optimizer, experiment.trainer, total_steps, notes),
    )


def _strategy(section: Algorithm, definition: AlgorithmDefinition, notes: Notes) -> tuple[str, dict[str, Any]]:
    """Returns the sample strategy with arguments."""
    strategy = section.sample_strategy or definition.sample_strategy
    default_args = definition.sample_strategy_args if strategy == definition.sample_strategy else {}
    args = section.sample_strategy_args or {}
    if strategy not in STRATEGIES:
        fix = f"rftd has: {', '.join(STRATEGIES)}"
        near = difflib.get_close_matches(strategy, STRATEGIES, 1)
        fix = f"did you mean {near[0]!r}? {fix}" if near else fix
        notes.wrong(("algorithm", "sample_strategy"), f"{strategy} cannot be run yet", fix, Unsupported)
        return strategy, dict(default_args)
    before = len(notes.issues)
    check_struct(args, STRATEGIES[strategy], _STRATEGY_ARGS, f"sample_strategy {strategy}", notes)
    if definition.needs.expert_data and strategy != "mix":
        problem = f"is {strategy}, but {definition.name} learns from an expert's rows beside its rollouts"
        notes.wrong(("algorithm", "sample_strategy"), problem, "leave it out, or write mix", Contradiction)
    # A strategy with invalid arguments is replaced by `default`, to avoid follow-up errors.
    return (strategy, {**default_args, **args}) if len(notes.issues) == before else ("default", {})


def _check_penalty_place(advantage: AdvantageFunction | None, parts: dict[str, Any], notes: Notes) -> None:
    """Refuses a penalty before the advantages if there is no penalty, or if the function cannot apply one.

    `advantage` is None for a third-party function.
    """
    path = ("algorithm", "kl_penalty_place")
    if parts["kl_penalty"] == "none":
        notes.wrong(path, "is before, and there is no KL penalty", "set algorithm.kl_penalty_fn, such as k1")
    elif advantage is not None:
        try:
            check_penalised(advantage, parts["advantage"])
        except ConfigError as error:
            notes.wrong(path, error.what, error.fix)


def _check_pairs(loss: str, definition: AlgorithmDefinition, notes: Notes) -> None:
    """Refuses a loss for labelled responses with rows that have no labels, and rows of pairs with any other loss."""
    labels = tells_labels(loss)
    if labels and definition.rows != "dpo":
        problem = f"{loss} needs labels of good and bad responses, and the rows of {definition.name} have none"
        if compares_pairs(loss):
            problem = f"{loss} compares a chosen response with a rejected one, and {definition.name} has no such pairs"
        fix = f"write algorithm_type: {loss}"
        if loss == "ipo":
            fix += "; prime-rl's clip, which had this name, is probability_clip, with mask_low and mask_high"
        notes.wrong(("algorithm", "policy_loss_fn"), problem, fix, Contradiction)
    if definition.rows == "dpo" and not labels:
        problem = f"{loss} would learn the rejected responses like the chosen ones"
        notes.wrong(
            ("algorithm", "policy_loss_fn"), problem, f"leave it out for {definition.policy_loss}", Contradiction
        )


def made_part(
    part_name: str,
    plugins: Plugins[Any],
    name: str,
    args: dict[str, Any],
    notes: Notes,
    *,
    path: FieldPath = ("algorithm",),
) -> Any:
    """Constructs a built-in part to validate the arguments, at `path` in the file; returns None for a third-party
    part.
    """
    try:
        plugins.check(name)
    except ConfigError as error:
        notes.wrong((*path, f"{part_name}_fn"), error.what, error.fix, Unsupported)
        return None
    if not plugins.builtin(name):
        return None
    path = (*path, f"{part_name}_fn_args")
    # The signature is checked before the construction, because a constructor stops at the first error.
    before = len(notes.issues)
    beside = other_names(name) if part_name == "policy_loss" else ()
    # Penalties use the losses' formulas under a separate name.
    noun = "KL penalty" if part_name == "kl_penalty" else ""
    check_declared(plugins, name, args, path, notes, extra_names=beside, noun=noun)
    if len(notes.issues) > before:
        return None
    try:
        return plugins.open(name, args)
    except ConfigError as error:
        refuse_made(error, path, args, notes)
        return None


def _outlined(source: SourceName, sources: Mapping[str, str], notes: Notes) -> Any:
    """Returns the stand-in of a loss in a Python file, which is not run here; None, with an issue, if unusable."""
    issues = len(notes.issues)
    check_own_source(("algorithm", "policy_loss_fn"), source, sources, notes)
    return outlined_loss(source, sources[source.file]) if len(notes.issues) == issues else None


def _repeat_times(experiment: Experiment, definition: AlgorithmDefinition, notes: Notes, greedy: int) -> int:
    """Returns the rollouts of a task: the file's, or the algorithm's default; an impossible number is an issue or a
    warning.
    """
    repeat_times = experiment.algorithm.repeat_times
    kind = definition.name
    default = definition.repeat_times
    if not definition.needs.rollouts:
        if repeat_times not in (None, default):
            notes.warn(f"algorithm.repeat_times is {default} with {kind}, which trains on rows")
        return default
    if repeat_times is None:
        return default
    if repeat_times == 1 and definition.own_tries and makes_own_tries(experiment):
        notes.warn(
            f"algorithm.repeat_times is 1: {kind} learns from every rollout, regardless of the reward; "
            "its workflow must try the task itself, and raise an error where no try is worth learning"
        )
    elif definition.needs.groups and repeat_times < 2:
        problem = (
            f"is {repeat_times}, but {kind} compares the answers to one task with each other: "
            "with a single answer every advantage is zero and nothing is learnt"
        )
        notes.wrong(
            ("algorithm", "repeat_times"), problem, f"set it to 2 or more, or leave it out for {default}", Contradiction
        )
    if repeat_times <= greedy:
        problem = (
            f"is {repeat_times}, but {greedy} rollout of each group is a greedy baseline: no rollout is left to train"
        )
        notes.wrong(("algorithm", "repeat_times"), problem, f"set it to {greedy + 1} or more", Contradiction)
    return repeat_times


def no_warmup(ratio: float, total_steps: int) -> str:
    """Returns a warning if the warm-up share amounts to less than one step; empty otherwise, and for the share 0."""
    if not ratio or int(ratio * total_steps):
        return ""
    return (
        f"algorithm.optimizer.lr_warmup_steps_ratio {ratio:g} is less than one of {total_steps} steps: there is no "
        "warm-up"
    )


def _optimizer(section: Optimizer, trainer: Trainer, total_steps: int, notes: Notes) -> Optimizer:
    """Returns the optimizer with its warm-up counted in steps, and with `trainer.grad_clip` if written."""
    optimizer = as_declared(section, Optimizer)
    counted = optimizer.lr_warmup_steps >= 0
    if total_steps and not counted and (warning := no_warmup(optimizer.lr_warmup_steps_ratio, total_steps)):
        notes.warn(warning)
    # The guide has the field in two sections: the trainer's takes precedence if written.
    if "grad_clip" in trainer.model_fields_set:
        optimizer = msgspec.structs.replace(optimizer, clip_grad=trainer.grad_clip)
    return optimizer.with_counted_warmup(total_steps)


def other_names(loss: str) -> tuple[str, ...]:
    """Returns names accepted in `policy_loss_args` besides the loss's own arguments."""
    if not POLICY_LOSSES.builtin(loss):
        return ()
    whole = tells_labels(loss)  # a pair or a response has a single value, never aggregated
    return (*_RENAMED.get(loss, ()), *(() if whole else _modes(loss)))


def policy_loss_args(section: Algorithm, loss: str, notes: Notes) -> tuple[dict[str, Any], str | None]:
    """Returns the policy loss's arguments under rftd's names, and the aggregation set in the file (None if unset).

    Synonyms must agree.
    """
    args = dict(section.policy_loss_fn_args or {})
    accepted_names = other_names(loss)
    for old, new in _RENAMED.get(loss, {}).items():
        if old not in args:
            continue
        setting = args.pop(old)
        if args.setdefault(new, setting) != setting:
            problem = f"is {setting!r}, but {new} (the same setting) is {args[new]!r}"
            notes.wrong((*_ARGS, old), problem, f"keep {new} only", Contradiction)
    aggregation: str | None = section.loss_agg_mode
    first: FieldPath = ("algorithm", "loss_agg_mode")
    for name in _modes(loss):
        if name not in accepted_names or name not in args:
            continue
        mode = _checked_mode((*_ARGS, name), args.pop(name), notes)
        if aggregation is None:
            aggregation = mode
            first = (*_ARGS, name)
        elif mode not in (None, aggregation):
            problem = f"is {mode}, but {show(first)} (the same setting) is {aggregation}"
            notes.wrong((*_ARGS, name), problem, "keep one of them", Contradiction)
    switched = sft.mode_of(args.get("use_token_level_loss"))
    if aggregation is not None and switched not in (None, aggregation):
        problem = f"asks for {switched}, and {show(first)} is {aggregation}"
        notes.wrong((*_ARGS, "use_token_level_loss"), problem, "keep one of them", Contradiction)
    return args, aggregation


def _modes(loss: str) -> tuple[str, ...]:
    """Returns the arguments of a loss that set the aggregation."""
    return ("loss_agg_mode", *_MODES.get(loss, ()))


def _checked_mode(path: FieldPath, mode: Any, notes: Notes) -> str | None:
    """Returns an aggregation's name; None if unset, or, after adding an issue, if unknown."""
    if mode is None:
        return None
    try:
        aggregation.check(str(mode))
    except ConfigError as error:
        notes.wrong(path, error.what, error.fix, WrongValue)
        return None
    return str(mode)
