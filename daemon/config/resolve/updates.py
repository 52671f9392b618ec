"""The optimizer steps of a batch: `ppo_epochs`, `ppo_mini_batch_size` and `shuffle`, verl's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Contradiction, WrongValue
from rftd.daemon.config.resolve.companions import fields_of
from rftd.daemon.config.resolve.notes import Notes
from rftd.daemon.config.schema.experiment import Experiment
from rftd.ops import limits
from rftd.ops.errors import ConfigError
from rftd.streams.spec import AlgorithmSpec, TrainerSpec, UpdatesSpec
from rftd.workers.algorithms.registry import lookup
from rftd.workers.training.losses.policy_loss import LossNeeds
from rftd.workers.training.losses.registry import POLICY_LOSSES

_FIELDS: Final = {"ppo_epochs": "epochs", "ppo_mini_batch_size": "mini_batch_items", "shuffle": "shuffle"}
_CONFIG: Final[FieldPath] = ("trainer", "trainer_config")


def with_updates(
    trainer: TrainerSpec,
    experiment: Experiment,
    algorithm: AlgorithmSpec,
    train_batch: int,
    notes: Notes,
) -> TrainerSpec:
    """The trainer with the optimizer steps of policy and critic; says it where a mini-batch does not divide a batch."""
    given = experiment.trainer
    config = experiment.trainer.trainer_config or {}
    wrapped = "actor_rollout_ref" in config
    actor: FieldPath = (*_CONFIG, "actor_rollout_ref", "actor") if wrapped else (*_CONFIG, "actor")
    critic: FieldPath = (*_CONFIG, "critic")
    found = _read(_section(config, actor[len(_CONFIG) :]), actor, train_batch, notes)
    own = {
        name: getattr(given, name)
        for name in _FIELDS
        if name in given.model_fields_set and getattr(given, name) is not None
    }
    for name in own.keys() & found.keys():
        if own[name] != found[name]:
            what = f"is {own[name]}, and {show((*actor, name))} is {found[name]}"
            notes.wrong(("trainer", name), what, "keep one of the two", Contradiction)
    _check_size(own, ("trainer",), train_batch, notes)
    policy = _spec(UpdatesSpec(), {**found, **own})
    _warn(policy, algorithm, train_batch, notes)
    trainer = msgspec.structs.replace(trainer, updates=policy)
    if "values" in fields_of(algorithm):
        of_critic = _read(_section(config, critic[len(_CONFIG) :]), critic, train_batch, notes)
        if of_critic:
            trainer = msgspec.structs.replace(trainer, critic_updates=_spec(policy, of_critic))
    return trainer


def _section(config: Mapping[str, Any], path: FieldPath) -> Mapping[str, Any]:
    """The section of the guide's tree; empty if there is none."""
    node: Any = config
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else {}


def _read(section: Mapping[str, Any], path: FieldPath, train_batch: int, notes: Notes) -> dict[str, Any]:
    """The guide's tree, checked: the schema does not look into it."""
    found: dict[str, Any] = {}
    for name in _FIELDS:
        value = section.get(name)
        if value is None:
            continue
        if name == "shuffle":
            if not isinstance(value, bool):
                notes.wrong((*path, name), f"is {value!r}", "write true or false", WrongValue)
                continue
        elif isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limits.PLAN_ROWS:
            fix = f"write a whole number between 1 and {limits.PLAN_ROWS}"
            notes.wrong((*path, name), f"is {value!r}", fix, WrongValue)
            continue
        found[name] = value
    _check_size(found, path, train_batch, notes)
    return found


def _check_size(found: Mapping[str, Any], path: FieldPath, train_batch: int, notes: Notes) -> None:
    """Says it where a mini-batch does not divide the batch."""
    size = found.get("ppo_mini_batch_size")
    if size is None or not train_batch or train_batch % size == 0:
        return
    what = f"is {size}, and a batch has {train_batch} items: "
    what += f"{train_batch % size} would be left over" if size < train_batch else "that is more than all of them"
    nearest = max(each for each in range(1, min(size, train_batch) + 1) if train_batch % each == 0)
    fix = f"write a divisor of {train_batch}, such as {nearest}, or change buffer.train_batch_size"
    notes.wrong((*path, "ppo_mini_batch_size"), what, fix, Contradiction)


def _spec(base: UpdatesSpec, given: Mapping[str, Any]) -> UpdatesSpec:
    return msgspec.structs.replace(base, **{_FIELDS[name]: value for name, value in given.items()})


def _warn(updates: UpdatesSpec, algorithm: AlgorithmSpec, train_batch: int, notes: Notes) -> None:
    parts = 0 < updates.mini_batch_items < train_batch
    if parts and algorithm.sample_strategy == "mix" and not updates.shuffle:
        notes.warn(
            "trainer.ppo_mini_batch_size: an expert's rows come after the experiences of a batch, so most mini-batches "
            "have one kind alone; trainer.shuffle mixes them"
        )
    if (parts or updates.epochs > 1) and lookup(algorithm.kind).needs.rollouts and not _has_ratio(algorithm):
        notes.warn(
            f"trainer.ppo_epochs, trainer.ppo_mini_batch_size: {algorithm.policy_loss} has no ratio to the weights "
            "that drew the tokens, so nothing bounds the later optimizer steps of a batch"
        )


def _has_ratio(algorithm: AlgorithmSpec) -> bool:
    """Returns True also for a third party's loss, of which nothing is known here."""
    if not POLICY_LOSSES.builtin(algorithm.policy_loss):
        return True
    try:
        loss = POLICY_LOSSES.open(algorithm.policy_loss, algorithm.policy_loss_args)
    except ConfigError:  # said already, where the part was made
        return True
    return LossNeeds.of(loss).old_logprobs
