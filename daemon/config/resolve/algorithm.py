"""The algorithm's own defaults with the user's parts over them, and the optimizer."""

from __future__ import annotations

from typing import Any, Final

from rftd.daemon.config.issue import Contradiction, Unsupported, WrongValue
from rftd.daemon.config.resolve.correction import resolve_correction
from rftd.daemon.config.resolve.notes import Notes
from rftd.daemon.config.schema.algorithm import Algorithm, Optimizer
from rftd.daemon.config.schema.trainer import Trainer
from rftd.ops.errors import ConfigError
from rftd.streams.spec import AlgorithmSpec, OptimizerSpec
from rftd.workers.algorithms import registry
from rftd.workers.algorithms.advantages.registry import ADVANTAGES
from rftd.workers.algorithms.definition import AlgorithmDefinition
from rftd.workers.algorithms.entropy_losses import ENTROPY_LOSSES
from rftd.workers.algorithms.kl_losses import KL_LOSSES
from rftd.workers.algorithms.policy_losses.registry import POLICY_LOSSES
from rftd.workers.plugins import Plugins

_PARTS: Final[dict[str, Plugins[Any]]] = {
    "advantage": ADVANTAGES,
    "policy_loss": POLICY_LOSSES,
    "kl_penalty": KL_LOSSES,
    "kl_loss": KL_LOSSES,
    "entropy_loss": ENTROPY_LOSSES,
}
_STRATEGIES: Final = ("default", "staleness_control", "mix", "warmup")
"""`warmup` is the older name of `default`."""


def find_algorithm(given: Algorithm, notes: Notes) -> AlgorithmDefinition | None:
    """The definition of the type, or None after saying that it cannot be run."""
    kind = given.algorithm_type
    try:
        return registry.lookup(kind)
    except ConfigError as error:
        notes.wrong(("algorithm", "algorithm_type"), error.what, error.fix, WrongValue)
        return None


def resolve_algorithm(
    given: Algorithm, definition: AlgorithmDefinition, trainer: Trainer, total_steps: int, notes: Notes
) -> AlgorithmSpec:
    """The objective of one stage, complete."""
    parts: dict[str, Any] = {}
    made: dict[str, Any] = {}
    for part, plugins in _PARTS.items():
        own: str = getattr(definition, part)
        name: str = getattr(given, f"{part}_fn") or own
        default: dict[str, Any] = getattr(definition, f"{part}_args") if name == own else {}
        parts[part] = name
        parts[f"{part}_args"] = {**default, **(getattr(given, f"{part}_fn_args") or {})}
        made[part] = _made_part(part, plugins, name, parts[f"{part}_args"], notes)
    own_mode: str | None = getattr(made["policy_loss"], "loss_agg_mode", None)
    if not definition.needs.rollouts and getattr(made["policy_loss"], "needs_old_logprobs", False):
        what = f"{parts['policy_loss']} compares with the log-probabilities of rollouts, and {definition.name} has rows"
        notes.wrong(("algorithm", "policy_loss_fn"), what, f"leave it out for {definition.policy_loss}", Contradiction)
    if made["policy_loss"] is not None:
        _check_pairs(getattr(made["policy_loss"], "needs_pairs", False), parts["policy_loss"], definition, notes)
    greedy = int(getattr(made["advantage"], "greedy_rollouts", 0))
    strategy = given.sample_strategy or definition.sample_strategy
    default = definition.sample_strategy_args if strategy == definition.sample_strategy else {}
    if strategy not in _STRATEGIES:
        fix = f"rftd has: {', '.join(_STRATEGIES)}"
        notes.wrong(("algorithm", "sample_strategy"), f"{strategy} cannot be run yet", fix, Unsupported)
    if definition.needs.expert_data and strategy != "mix":
        what = f"is {strategy}, but {definition.name} learns from an expert's rows beside its rollouts"
        notes.wrong(("algorithm", "sample_strategy"), what, "leave it out, or write mix", Contradiction)
    return AlgorithmSpec(
        kind=given.algorithm_type,
        repeat_times=_repeat_times(given, definition, notes, greedy),
        greedy_rollouts=greedy,
        **parts,
        loss_agg_mode=given.loss_agg_mode or own_mode or definition.loss_agg_mode,
        loss_scale_factor=given.loss_scale_factor,
        sample_strategy=strategy,
        sample_strategy_args={**default, **(given.sample_strategy_args or {})},
        correction=resolve_correction(given, from_rollouts=definition.needs.rollouts, notes=notes),
        optimizer=_optimizer(given.optimizer, trainer, total_steps),
    )


def _check_pairs(needs_pairs: bool, loss: str, definition: AlgorithmDefinition, notes: Notes) -> None:
    if needs_pairs and definition.rows != "dpo":
        what = f"{loss} compares a chosen response with a rejected one, and {definition.name} has no such pairs"
        notes.wrong(("algorithm", "policy_loss_fn"), what, "write algorithm_type: dpo", Contradiction)
    if definition.rows == "dpo" and not needs_pairs:
        what = f"{loss} would learn the rejected responses like the chosen ones"
        notes.wrong(("algorithm", "policy_loss_fn"), what, f"leave it out for {definition.policy_loss}", Contradiction)


def _made_part(part: str, plugins: Plugins[Any], name: str, args: dict[str, Any], notes: Notes) -> Any:
    """Ours are made, to see that the arguments fit; a third party's module is not imported here: None."""
    try:
        plugins.check(name)
    except ConfigError as error:
        notes.wrong(("algorithm", f"{part}_fn"), error.what, error.fix, Unsupported)
        return None
    if plugins.builtin(name):
        try:
            return plugins.open(name, args)
        except ConfigError as error:
            notes.wrong(("algorithm", f"{part}_fn_args"), error.what, error.fix, WrongValue)
    return None


def _repeat_times(given: Algorithm, definition: AlgorithmDefinition, notes: Notes, greedy: int) -> int:
    asked, kind, default = given.repeat_times, given.algorithm_type, definition.repeat_times
    if not definition.needs.rollouts:
        if asked not in (None, default):
            notes.warn(f"algorithm.repeat_times is {default} with {kind}, which trains on rows")
        return default
    if asked is None:
        return default
    if definition.needs.groups and asked < 2:
        what = (
            f"is {asked}, but {kind} compares the answers to one task with each other: "
            "with a single answer every advantage is zero and nothing is learnt"
        )
        notes.wrong(
            ("algorithm", "repeat_times"), what, f"set it to 2 or more, or leave it out for {default}", Contradiction
        )
    if asked <= greedy:
        what = f"is {asked}, but of each group {greedy} rollout is a greedy baseline: none is left to train"
        notes.wrong(("algorithm", "repeat_times"), what, f"set it to {greedy + 1} or more", Contradiction)
    return asked


def _optimizer(given: Optimizer, trainer: Trainer, total_steps: int) -> OptimizerSpec:
    ratio = given.lr_warmup_steps_ratio
    counted = given.lr_warmup_steps >= 0
    return OptimizerSpec(
        kind=given.optimizer_type,
        lr=given.lr,
        betas=(given.betas[0], given.betas[1]),
        weight_decay=given.weight_decay,
        warmup_steps=given.lr_warmup_steps if counted else int(ratio * total_steps),
        warmup_ratio=0.0 if counted or total_steps else ratio,
        scheduler=given.lr_scheduler_type,
        min_lr_ratio=given.min_lr_ratio,
        grad_clip=trainer.grad_clip if "grad_clip" in trainer.model_fields_set else given.clip_grad,
    )
