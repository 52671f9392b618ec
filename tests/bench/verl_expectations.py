"""What the fields that are worked out of several of veRL's keys should be, from the alignment guide's rules alone.

Nothing of the importer is used: each rule is written down here a second time, so that the two can be held against each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

Values: TypeAlias = Mapping[str, Any]
"""Values of keys that a script gives as literals, and veRL's defaults of those that it does not name at all."""

_ACTOR: Final = "actor_rollout_ref.actor"
_ROLLOUT: Final = "actor_rollout_ref.rollout"
_OPTIM: Final = f"{_ACTOR}.optim"
DEFAULTS: Final[Values] = {
    "data.train_batch_size": 1024,
    f"{_ACTOR}.ppo_mini_batch_size": 256,
    f"{_ROLLOUT}.n": 1,
    f"{_ACTOR}.use_kl_loss": False,
    f"{_ACTOR}.kl_loss_type": "low_var_kl",
    f"{_ACTOR}.kl_loss_coef": 0.001,
    f"{_ACTOR}.policy_loss.loss_mode": "vanilla",
    "algorithm.use_kl_in_reward": False,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_ctrl.kl_coef": 0.001,
    f"{_ROLLOUT}.n_agent": None,
    "actor_rollout_ref.model.lora_rank": 0,
    "trainer.total_training_steps": None,
    "trainer.critic_warmup": 0,
}
_PENALTIES: Final = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "low_var_kl"} | {
    "k3": "k3"
}
_LOSSES: Final = {"vanilla": "ppo", "gspo": "gspo", "sapo": "sapo", "geo_mean": "gmpo", "clip_cov": "clip_cov"} | {
    "kl_cov": "kl_cov",
    "cispo": "cispo",
}
_ESTIMATORS: Final = {
    **{"gae": "ppo", "grpo": "grpo", "rloo": "rloo", "remax": "remax", "opo": "opo", "gpg": "gpg", "gdpo": "gdpo"},
    **{"reinforce_plus_plus": "reinforceplusplus", "grpo_passk": "grpo_passk"},
    "reinforce_plus_plus_baseline": "reinforceplusplus_baseline",
}
_EVALUATION: Final = "buffer.explorer_input.eval_tasksets[0]"
_TASKS: Final = "buffer.explorer_input.tasksets[0]"


class _Missing(Exception):
    """Signals a key that the script names and whose value is no literal."""


class _Known:
    """The values of one script, which remembers the keys that were asked for."""

    def __init__(self, text: str, given: Values) -> None:
        self._text = text
        self._given = given

    def __call__(self, name: str) -> Any:
        if name in self._given:
            return self._given[name]
        last = name.rpartition(".")[2]
        # A key that stands anywhere in the script in another form is not known.
        if name in self._text or name not in DEFAULTS or (last == "n" and f"{_ROLLOUT}.n" in self._text):
            raise _Missing(name)
        return DEFAULTS[name]

    def written(self, name: str) -> Any:
        """The value of a key that the script must give."""
        if name not in self._given:
            raise _Missing(name)
        return self._given[name]


def _mini(known: _Known) -> int:
    return min(int(known(f"{_ACTOR}.ppo_mini_batch_size")), int(known("data.train_batch_size")))


def _answers(known: _Known) -> int:
    return int(known(f"{_ROLLOUT}.n")) * int(known(f"{_ROLLOUT}.n_agent") or 1)


def _interval(known: _Known) -> int:
    return int(known("data.train_batch_size")) // _mini(known)


def _times(name: str) -> Callable[[_Known], Any]:
    return lambda known: max(0, int(known.written(name))) * _interval(known)


def _warmup(known: _Known) -> Any:
    steps = int(known.written(f"{_OPTIM}.lr_warmup_steps"))
    return steps * _interval(known) if steps > 0 else -1


def _kl_loss(known: _Known) -> Any:
    kind = str(known(f"{_ACTOR}.kl_loss_type"))
    if not known(f"{_ACTOR}.use_kl_loss"):
        return "none"
    return "k2" if kind.endswith("+") else _PENALTIES[kind]


def _kl_penalty(known: _Known) -> Any:
    return _PENALTIES[str(known("algorithm.kl_penalty"))] if known("algorithm.use_kl_in_reward") else "none"


def _evaluated(known: _Known) -> Any:
    values = f"{_ROLLOUT}.val_kwargs"
    try:
        if not known.written(f"{values}.do_sample"):
            return 0.0
    except _Missing:
        if f"{values}.do_sample" in known._text:
            raise
    return known.written(f"{values}.temperature")


def _frequency(known: _Known) -> Any:
    every = int(known.written("trainer.test_freq"))
    if every <= 0:
        raise _Missing("trainer.test_freq")
    return every * _interval(known)


RULES: Final[Mapping[str, Callable[[_Known], Any]]] = {
    "buffer.batch_size": _mini,
    "buffer.train_batch_size": lambda known: _mini(known) * _answers(known),
    "algorithm.repeat_times": _answers,
    "synchronizer.sync_interval": _interval,
    "buffer.total_steps": _times("trainer.total_training_steps"),
    "trainer.save_interval": _times("trainer.save_freq"),
    "explorer.eval_interval": _frequency,
    "algorithm.optimizer.lr_warmup_steps": _warmup,
    "algorithm.kl_loss_fn": _kl_loss,
    "algorithm.kl_penalty_fn": _kl_penalty,
    "algorithm.policy_loss_fn": lambda known: _LOSSES[str(known.written(f"{_ACTOR}.policy_loss.loss_mode"))],
    "algorithm.advantage_fn": lambda known: _ESTIMATORS[str(known.written("algorithm.adv_estimator"))],
    f"{_EVALUATION}.rollout_args.temperature": _evaluated,
    f"{_EVALUATION}.repeat_times": lambda known: known.written(f"{_ROLLOUT}.val_kwargs.n"),
    f"{_TASKS}.rollout_args.temperature": lambda known: known.written(f"{_ROLLOUT}.temperature"),
    f"{_TASKS}.format.prompt_key": lambda known: known.written("data.prompt_key"),
    f"{_TASKS}.data_selector.selector_type": lambda known: "shuffle" if known.written("data.shuffle") else "sequential",
    "model.lora_configs[0].lora_rank": lambda known: known.written("actor_rollout_ref.model.lora_rank") or None,
    "explorer.rollout_model.tensor_parallel_size": lambda known: known.written(
        f"{_ROLLOUT}.tensor_model_parallel_size"
    ),
}
"""Fields of an experiment, and the rule of each."""


def expected(text: str, given: Values) -> Iterator[tuple[str, Any]]:
    """The fields whose value follows from literals and defaults of this script, with that value."""
    known = _Known(text, given)
    for field, rule in RULES.items():
        try:
            value = rule(known)
        except (_Missing, KeyError, TypeError, ValueError, ZeroDivisionError):
            continue
        if value is not None:
            yield field, value
