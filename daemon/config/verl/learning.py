"""Rules for what is learned: algorithm, losses and optimizer, the trainer, and the critic beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rftd.daemon.config.verl.draft import ExperimentDraft
from rftd.daemon.config.verl.optimizer import put_optimizer, put_strategy, times, word_of
from rftd.ops.errors import ConfigError
from rftd.ops.plugins import Plugins
from rftd.workers.algorithms import registry
from rftd.workers.algorithms.advantages.registry import ADVANTAGES
from rftd.workers.training.losses.registry import POLICY_LOSSES
from rftd.workers.training.token_advantages.penalised import check_penalised

_ACTOR: Final = "actor_rollout_ref.actor"
_MODEL: Final = "actor_rollout_ref.model"
_ESTIMATORS: Final[Mapping[str, tuple[str, str]]] = {
    "gae": ("ppo", "ppo"),
    "grpo": ("grpo", "grpo"),
    "grpo_vectorized": ("grpo", "grpo"),
    "reinforce_plus_plus": ("reinforceplusplus", "reinforceplusplus"),
    "reinforce_plus_plus_baseline": ("reinforceplusplus_baseline", "reinforceplusplus_baseline"),
    "rloo": ("rloo", "rloo"),
    "rloo_vectorized": ("rloo", "rloo"),
    "remax": ("grpo", "remax"),
    "opo": ("opo", "opo"),
    "gpg": ("gpg", "gpg"),
}
"""veRL's estimators: the type and the advantage function here."""
_LOSSES: Final[Mapping[str, str]] = {
    **{"vanilla": "ppo", "gspo": "gspo", "sapo": "sapo", "geo_mean": "gmpo"},
    **{"clip_cov": "clip_cov", "kl_cov": "kl_cov", "cispo": "cispo", "gpg": "opmd"},
}
_PENALTIES: Final[Mapping[str, str]] = {
    **{"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "low_var_kl", "k3": "k3"},
}
_LOSS_ARGS: Final[Mapping[str, str]] = {
    "clip_ratio": "clip_range",
    "clip_ratio_low": "clip_range_low",
    "clip_ratio_high": "clip_range_high",
    "clip_ratio_c": "clip_ratio_c",
    "tau_pos": "tau_pos",
    "tau_neg": "tau_neg",
    "policy_loss.clip_cov_ratio": "clip_cov_ratio",
    "policy_loss.clip_cov_lb": "clip_cov_lb",
    "policy_loss.clip_cov_ub": "clip_cov_ub",
    "policy_loss.kl_cov_ratio": "kl_cov_ratio",
    "policy_loss.ppo_kl_coef": "ppo_kl_coef",
}
"""Keys below `actor`, and the arguments of the losses here."""


def put_learning(draft: ExperimentDraft, interval: int) -> None:
    """The fields of `algorithm` and `trainer`, and of `model` those of the adapter and the critic.

    `interval` is how many steps here are one of veRL's.
    """
    advantage = _put_advantage(draft)
    _put_losses(draft)
    _put_penalties(draft, advantage)
    draft.put("algorithm.repeat_times", draft.number("actor_rollout_ref.rollout.n"), "actor_rollout_ref.rollout.n")
    put_optimizer(draft, interval)
    _put_trainer(draft, interval)
    _put_adapter(draft)
    _put_critic(draft, interval, has_critic=advantage == "ppo")


def _takes(plugins: Plugins[Any], name: str | None, argument: str) -> bool:
    return name is not None and argument in (plugins.arguments(name) or ())


def _put_advantage(draft: ExperimentDraft) -> str | None:
    """The type and the advantage function; the function's name."""
    name = "algorithm.adv_estimator"
    kind, advantage = word_of(draft, name, _ESTIMATORS) or (None, None)
    if kind is None:
        return None
    draft.put("algorithm.algorithm_type", kind, name)
    draft.put("algorithm.advantage_fn", advantage, name)
    for key in ("gamma", "lam"):
        if _takes(ADVANTAGES, advantage, key):
            draft.put_given(f"algorithm.advantage_fn_args.{key}", f"algorithm.{key}")
        else:
            draft.drop(f"algorithm.{key}", f"{advantage} has no {key}")
    by_std = "algorithm.norm_adv_by_std_in_grpo"
    if draft.flag(by_std):
        draft.drop(by_std, "so it is here")
    elif _takes(ADVANTAGES, advantage, "std_cal_level"):
        draft.put("algorithm.advantage_fn_args.std_cal_level", "none", by_std)
    else:
        draft.drop(by_std, f"{advantage} divides by no std")
    return str(advantage)


def _put_losses(draft: ExperimentDraft) -> None:
    """The policy loss with its arguments, and the entropy's coefficient."""
    mode = f"{_ACTOR}.policy_loss.loss_mode"
    loss = word_of(draft, mode, _LOSSES)
    kind = draft.fields.get(("algorithm", "algorithm_type"), (None, ""))[0]
    if loss == "opmd":
        draft.put("algorithm.policy_loss_fn_args.tau", 0.0, mode, note="so opmd is veRL's gpg")
    if loss is not None and (draft.given(mode) or (kind and registry.lookup(kind).policy_loss != loss)):
        draft.put("algorithm.policy_loss_fn", loss, mode)
    for key, argument in _LOSS_ARGS.items():
        name = f"{_ACTOR}.{key}"
        if _takes(POLICY_LOSSES, loss, argument):
            draft.put_given(f"algorithm.policy_loss_fn_args.{argument}", name)
        else:
            draft.drop(name, f"the policy loss {loss} has no {argument}")
    dual = f"{_ACTOR}.clip_ratio_c"
    if _takes(POLICY_LOSSES, loss, "clip_ratio_c") and draft.given(dual) is None:
        draft.remark(
            "veRL's default", dual, f"is {draft.value(dual)}; here there is no second clip unless it is written"
        )
    draft.put_given("algorithm.entropy_loss_fn_args.entropy_coef", f"{_ACTOR}.entropy_coeff")


def _put_penalties(draft: ExperimentDraft, advantage: str | None) -> None:
    """The KL in the reward and the KL in the loss, each with its coefficient."""
    use = "algorithm.use_kl_in_reward"
    coef = "algorithm.kl_ctrl.kl_coef"
    adaptive = ("type", "horizon", "target_kl")
    if not draft.flag(use):
        draft.put("algorithm.kl_penalty_fn", "none", use)
        for name in ("algorithm.kl_penalty", coef, *(f"algorithm.kl_ctrl.{key}" for key in adaptive)):
            draft.drop(name, f"{use} is false")
    else:
        draft.put(
            "algorithm.kl_penalty_fn", word_of(draft, "algorithm.kl_penalty", _PENALTIES), use, "algorithm.kl_penalty"
        )
        draft.put("algorithm.kl_penalty_fn_args.kl_coef", draft.value(coef), coef)
        if draft.value("algorithm.kl_ctrl.type") == "adaptive":
            draft.put("algorithm.kl_penalty_fn_args.adaptive", True, "algorithm.kl_ctrl.type")
            for key in adaptive[1:]:
                name = f"algorithm.kl_ctrl.{key}"
                draft.put(f"algorithm.kl_penalty_fn_args.{key}", draft.value(name), name)
        if advantage and _from_rewards(advantage):
            draft.put("algorithm.kl_penalty_place", "before", note="veRL takes it from the rewards")
    use = f"{_ACTOR}.use_kl_loss"
    kind = f"{_ACTOR}.kl_loss_type"
    coef = f"{_ACTOR}.kl_loss_coef"
    if draft.flag(use):
        draft.put("algorithm.kl_loss_fn", word_of(draft, kind, _PENALTIES), use, kind)
        draft.put("algorithm.kl_loss_fn_args.kl_coef", draft.value(coef), coef)
    else:
        draft.put("algorithm.kl_loss_fn", "none", use)
        draft.drop(kind, f"{use} is false")
        draft.drop(coef, f"{use} is false")


def _from_rewards(advantage: str) -> bool:
    """True if the penalty can be taken before the group's normalisation, as veRL does it."""
    try:
        check_penalised(ADVANTAGES.open(advantage, {}), advantage)
    except ConfigError:
        return False
    return True


def _put_trainer(draft: ExperimentDraft, interval: int) -> None:
    epochs = f"{_ACTOR}.ppo_epochs"
    draft.put_given("trainer.ppo_epochs", epochs)
    if draft.value(epochs) != 1 and interval > 1:
        text = f"veRL goes over all {interval} mini-batches and then again; here each is gone over in its turn"
        draft.remark("needs a person", epochs, f"({text})")
    if draft.flag(f"{_ACTOR}.shuffle"):
        draft.ask(
            f"{_ACTOR}.shuffle", "a batch here is one mini-batch of veRL's: it is not shuffled with the next ones"
        )
    else:
        draft.drop(f"{_ACTOR}.shuffle", "so it is here")
    put_strategy(draft)
    frequency = "trainer.save_freq"
    if draft.given(frequency):
        draft.put("trainer.save_interval", max(0, draft.number(frequency)), frequency)
    for name in (f"{_ACTOR}.checkpoint.save_contents", f"{_ACTOR}.checkpoint.contents"):
        contents = draft.value(name)
        if isinstance(contents, list) and "hf_model" in contents:
            draft.put("trainer.save_hf_checkpoint", "always", name)
        else:
            draft.drop(name, "checkpoints hold all that a restart needs")
    kept = "trainer.max_actor_ckpt_to_keep"
    if draft.given(kept):
        draft.put("trainer.max_checkpoints_to_keep", max(0, draft.number(kept)), kept)
    newest = "trainer.remove_previous_ckpt_in_save"
    if draft.flag(newest):
        draft.put("trainer.max_checkpoints_to_keep", 1, newest)
    else:
        draft.drop(newest, "so it is here")
    warmup = "trainer.critic_warmup"
    if draft.given(warmup):
        draft.put(warmup, max(0, draft.number(warmup)) * interval, warmup)


def _put_adapter(draft: ExperimentDraft) -> None:
    """One entry of `model.lora_configs`, if an adapter is trained."""
    keys = {"lora_alpha": "lora_alpha", "target_modules": "target_modules", "exclude_modules": "exclude_modules"}
    keys["lora_adapter_path"] = "path"
    rank = f"{_MODEL}.lora_rank"
    if not draft.number(rank):
        for key in ("lora_rank", *keys):
            draft.drop(f"{_MODEL}.{key}", f"{rank} is 0: the model itself is trained")
        return
    draft.put("model.lora_configs[0].name", "adapter", rank)
    draft.put("model.lora_configs[0].lora_rank", draft.number(rank), rank)
    for key, target in keys.items():
        if draft.value(f"{_MODEL}.{key}") is not None:
            draft.put(f"model.lora_configs[0].{target}", draft.value(f"{_MODEL}.{key}"), f"{_MODEL}.{key}")


def _put_critic(draft: ExperimentDraft, interval: int, *, has_critic: bool) -> None:
    given = [name for name in draft.settings.given if name.startswith("critic.")]
    if not has_critic:
        for name in given:
            draft.drop(name, f"{draft.value('algorithm.adv_estimator')} has no critic")
        return
    draft.put_given("model.critic_model_path", "critic.model.path")
    draft.drop("critic.enable", "gae has a critic")
    n = draft.number("actor_rollout_ref.rollout.n")
    size = "critic.ppo_mini_batch_size"
    if draft.value(size) == draft.value(f"{_ACTOR}.ppo_mini_batch_size"):
        draft.drop(size, "as the actor's")
    elif draft.given(size):
        note = "times actor_rollout_ref.rollout.n" if n > 1 else ""
        draft.put(f"trainer.trainer_config.{size}", draft.number(size) * n, size, note=note)
    warmup = "critic.optim.lr_warmup_steps"
    if draft.given(warmup):
        steps = draft.number(warmup)
        counted = steps * interval if steps > 0 else -1
        draft.put(f"trainer.trainer_config.{warmup}", counted, warmup, note=times(interval))
    for name in ("critic.ppo_epochs", "critic.shuffle"):
        draft.put_given(f"trainer.trainer_config.{name}", name)
