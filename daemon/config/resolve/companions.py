"""Models beside the one that is trained: a critic, a teacher."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rftd.daemon.config.issue import Contradiction, WrongValue
from rftd.daemon.config.resolve.notes import Notes
from rftd.daemon.config.schema.experiment import Experiment
from rftd.ops.errors import ConfigError
from rftd.streams.spec import AlgorithmSpec, TrainerSpec
from rftd.workers.algorithms.advantages.registry import ADVANTAGES
from rftd.workers.training.token_advantages.registry import token_advantage
from rftd.workers.training.token_advantages.token_advantage import PassField

_CRITIC_ARGS: Final = {
    ("optim", "lr"): "critic_lr",
    ("cliprange_value",): "critic_clip",
    ("grad_clip",): "critic_grad_clip",
}
"""What `trainer.trainer_config.critic` says, as the engine calls it."""


def with_companions(
    trainer: TrainerSpec, experiment: Experiment, algorithm: AlgorithmSpec, notes: Notes
) -> TrainerSpec:
    """The trainer with the critic and the teacher that the advantages need."""
    needs = fields_of(algorithm)
    if "values" in needs:
        args = _critic_args(experiment.trainer.trainer_config, notes) | trainer.engine_args
        trainer = msgspec.structs.replace(
            trainer,
            critic_path=experiment.model.critic_model_path,
            critic_warmup_steps=experiment.trainer.critic_warmup,
            engine_args=args,
        )
    elif experiment.trainer.critic_warmup or experiment.model.critic_model_path:
        notes.warn(f"model.critic_model_path, trainer.critic_warmup: {algorithm.kind} has no critic")
    if "teacher_logprobs" in needs:
        models = experiment.explorer.auxiliary_models
        path = models[0].model_path if models else None
        if not path:
            what = f"names no teacher, and {algorithm.advantage} learns from one"
            notes.wrong(
                ("explorer", "auxiliary_models"), what, "write [{model_path: the folder of the teacher}]", Contradiction
            )
        trainer = msgspec.structs.replace(trainer, teacher_path=path or "")
    elif experiment.explorer.auxiliary_models:
        notes.warn("explorer.auxiliary_models has no effect yet but as the teacher of an algorithm that has one")
    return trainer


def fields_of(algorithm: AlgorithmSpec) -> frozenset[PassField]:
    """The fields of a batch that the advantages must know.

    Of a third party's function nothing is known here: its module is not imported.
    """
    if not ADVANTAGES.builtin(algorithm.advantage):
        return frozenset()
    try:
        found = token_advantage(algorithm)
    except ConfigError:  # said already, where the part was made
        return frozenset()
    return found.needs if found else frozenset()


def _critic_args(config: dict[str, Any] | None, notes: Notes) -> dict[str, Any]:
    given = (config or {}).get("critic", {})
    found: dict[str, Any] = {}
    for path, name in _CRITIC_ARGS.items():
        value: Any = given
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            where = ("trainer", "trainer_config", "critic", *path)
            notes.wrong(where, f"is {value!r}", "write a number above 0", WrongValue)
        else:
            found[name] = float(value)
    return found
