"""`in_own_words`: the value that veRL would have for a key, were it told what the fields of the experiment say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.verl.table import VerlKey

_ACTOR: Final = "actor_rollout_ref.actor"
_ROLLOUT: Final = "actor_rollout_ref.rollout"
_WORKED_OUT: Final[Mapping[str, Callable[[Experiment], Any]]] = {
    "algorithm.use_kl_in_reward": lambda given: _has(given.algorithm.kl_penalty_fn),
    f"{_ACTOR}.use_kl_loss": lambda given: _has(given.algorithm.kl_loss_fn),
    f"{_ACTOR}.kl_loss_coef": lambda given: (given.algorithm.kl_loss_fn_args or {}).get("kl_coef"),
    f"{_ACTOR}.entropy_coeff": lambda given: (given.algorithm.entropy_loss_fn_args or {}).get("entropy_coef"),
    f"{_ROLLOUT}.n": lambda given: given.algorithm.repeat_times,
    f"{_ROLLOUT}.tensor_model_parallel_size": lambda given: given.explorer.rollout_model.tensor_parallel_size,
    "trainer.n_gpus_per_node": lambda given: given.cluster.gpu_per_node or None,
    "trainer.nnodes": lambda given: given.cluster.node_num or None,
    "trainer.total_training_steps": lambda given: given.buffer.total_steps,
    "trainer.resume_mode": lambda given: "auto" if given.continue_from_checkpoint else "disable",
}
"""Keys from which a field is worked out, and the way back."""


def in_own_words(experiment: Experiment, key: VerlKey) -> Any:
    """The value, or None where no field says anything of the key, or says it in a way that veRL has not."""
    if key.name in _WORKED_OUT:
        return _WORKED_OUT[key.name](experiment)
    if key.fate != "field" or "[" in key.target:
        return None
    value: Any = experiment
    for name in key.target.split("."):
        value = getattr(value, name, None)
    return value


def _has(part: str | None) -> bool | None:
    return None if part is None else part != "none"
