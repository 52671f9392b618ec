"""`verl_value` returns the value of a veRL key corresponding to the fields of the experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.verl.table import VerlKey

_ACTOR: Final = "actor_rollout_ref.actor"
"""Section of the actor in veRL's configuration."""
_ROLLOUT: Final = "actor_rollout_ref.rollout"
"""Section of the rollout engine in veRL's configuration."""
_WORKED_OUT: Final[Mapping[str, Callable[[Experiment], Any]]] = {
    "algorithm.use_kl_in_reward": lambda experiment: _has(experiment.algorithm.kl_penalty_fn),
    f"{_ACTOR}.use_kl_loss": lambda experiment: _has(experiment.algorithm.kl_loss_fn),
    f"{_ACTOR}.kl_loss_coef": lambda experiment: (experiment.algorithm.kl_loss_fn_args or {}).get("kl_coef"),
    f"{_ACTOR}.entropy_coeff": lambda experiment: (experiment.algorithm.entropy_loss_fn_args or {}).get("entropy_coef"),
    f"{_ROLLOUT}.n": lambda experiment: experiment.algorithm.repeat_times,
    f"{_ROLLOUT}.tensor_model_parallel_size": lambda experiment: experiment.explorer.rollout_model.tensor_parallel_size,
    "trainer.n_gpus_per_node": lambda experiment: experiment.cluster.gpu_per_node or None,
    "trainer.nnodes": lambda experiment: experiment.cluster.node_num or None,
    "trainer.total_training_steps": lambda experiment: experiment.buffer.total_steps,
    "trainer.resume_mode": lambda experiment: "auto" if experiment.continue_from_checkpoint else "disable",
}
"""Keys determining a field, and the function computing the key's value back from the field."""


def verl_value(experiment: Experiment, key: VerlKey) -> Any:
    """Returns the value of a veRL key that corresponds to the experiment's fields; None if none does."""
    if key.name in _WORKED_OUT:
        return _WORKED_OUT[key.name](experiment)
    if key.fate != "field" or "[" in key.target:
        return None
    node: Any = experiment
    for name in key.target.split("."):
        node = getattr(node, name, None)
    return node


def _has(name: str | None) -> bool | None:
    """Returns whether a part is named, other than `none`; None if the name is not set."""
    return None if name is None else name != "none"
