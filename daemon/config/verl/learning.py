"""Rules for learning: algorithm, losses and optimizer, the trainer, and the critic."""

from __future__ import annotations

from typing import Any, Final

from rftd.daemon.config.verl.draft import ExperimentDraft
from rftd.daemon.config.verl.optimizer import put_optimizer, put_strategy, times, word_of
from rftd.daemon.config.verl.pacing import VerlPace
from rftd.daemon.config.verl.table import TABLES
from rftd.ops.errors import ConfigError
from rftd.ops.plugins import Plugins
from rftd.workers.learning.algorithms import registry
from rftd.workers.learning.algorithms.advantages.registry import ADVANTAGES
from rftd.workers.learning.losses.registry import POLICY_LOSSES
from rftd.workers.learning.token_advantages.penalised import check_penalised

_ACTOR: Final = "actor_rollout_ref.actor"
"""Section of the actor in veRL's configuration."""
_MODEL: Final = "actor_rollout_ref.model"
"""Section of the model in veRL's configuration."""
_CORRECTION: Final = "algorithm.rollout_correction"
"""Section of the rollout correction in veRL's configuration."""
_LOSSES: Final = TABLES.words["losses"]
"""rftd's policy losses by veRL's names."""
_PENALTIES: Final = TABLES.words["penalties"]
"""rftd's estimators of the KL by veRL's names."""


def put_learning(draft: ExperimentDraft, pace: VerlPace) -> None:
    """Sets the fields of `algorithm` and `trainer`, and the adapter and the critic in `model`."""
    advantage = _put_advantage(draft)
    _put_losses(draft, pace)
    _put_penalties(draft, advantage)
    draft.put("algorithm.repeat_times", pace.answers, *pace.of_answers)
    put_optimizer(draft, pace.update)
    _put_trainer(draft, pace)
    _put_adapter(draft)
    _put_critic(draft, pace, has_critic=advantage == "ppo")


def _takes(plugins: Plugins[Any], name: str | None, argument: str) -> bool:
    """True if a part of this name has an argument `argument`."""
    return name is not None and argument in (plugins.arguments(name) or ())


def _put_advantage(draft: ExperimentDraft) -> str | None:
    """Sets the algorithm and the advantage function; returns the function's name."""
    name = "algorithm.adv_estimator"
    kind, advantage = word_of(draft, name, TABLES.words["estimators"]) or (None, None)
    if kind is None:
        return None
    if advantage == "optimal_token_baseline" and draft.value(f"{_CORRECTION}.rollout_is"):
        note = "veRL weighs the baseline by rollout_is: optimal_token_baseline has no such weights here"
        draft.gap("algorithm.advantage_fn", name, note=note)
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
        draft.drop(by_std, "rftd does the same")
    elif _takes(ADVANTAGES, advantage, "std_cal_level"):
        draft.put("algorithm.advantage_fn_args.std_cal_level", "none", by_std)
    else:
        draft.drop(by_std, f"{advantage} divides by no std")
    if advantage == "gdpo":
        _put_parts(draft)
    _put_filter(draft, str(advantage))
    _put_overlong(draft, str(advantage))
    _put_truncated(draft, str(advantage))
    return str(advantage)


def _put_parts(draft: ExperimentDraft) -> None:
    """Sets the weights of a reward's parts, by name."""
    keys = draft.value("algorithm.gdpo_reward_keys") or []
    weights = draft.value("algorithm.gdpo_reward_weights") or [1.0] * len(keys)
    if isinstance(keys, list) and keys and len(keys) == len(weights):
        names = [name for name in ("algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights") if draft.given(name)]
        for key, weight in zip(keys, weights, strict=True):
            draft.put(f"algorithm.advantage_fn_args.weights.{key}", weight, *names, brief=True)
    else:
        draft.ask("algorithm.gdpo_reward_keys", "write algorithm.advantage_fn_args.weights, a number for each part")


def _put_filter(draft: ExperimentDraft, advantage: str) -> None:
    """Converts DAPO's resampling of groups with equal rewards."""
    use = "algorithm.filter_groups.enable"
    if not draft.flag(use):
        draft.drop(use, "rftd does the same")
    elif _takes(ADVANTAGES, advantage, "std_threshold"):
        draft.put("algorithm.advantage_fn_args.std_threshold", 0.0, use, note="groups of equal rewards are not trained")
    else:
        draft.gap("algorithm.advantage_fn", use, note=f"{advantage} leaves no group out, grpo does")


def _put_truncated(draft: ExperimentDraft, advantage: str) -> None:
    """Converts the masking of truncated responses, a feature of rllm's release of veRL."""
    masks = "algorithm.mask_truncated_samples"
    if not draft.flag(masks):
        draft.drop(masks, "rftd does the same")
    elif _takes(ADVANTAGES, advantage, "mask_truncated"):
        draft.put("algorithm.advantage_fn_args.mask_truncated", True, masks)
    else:
        draft.gap("algorithm.advantage_fn", masks, note=f"{advantage} trains every response, grpo need not")


def _put_overlong(draft: ExperimentDraft, advantage: str) -> None:
    """Converts DAPO's penalty for overlong responses, under the names of three generations of veRL."""
    for section, longest in TABLES.words["overlong"].items():
        use = f"{section}.enable"
        for name in (f"{section}.log", longest):
            draft.drop(name, f"see {use}")
        if not draft.flag(use) or draft.value(f"{section}.len") == 0:
            for key in ("enable", "len", "penalty_factor"):
                draft.drop(f"{section}.{key}", f"{use} is false, or the buffer empty")
        elif draft.given(f"{section}.len") and _takes(ADVANTAGES, advantage, "overlong_buffer"):
            limit = longest if draft.given(longest) else "data.max_response_length"
            draft.put("algorithm.advantage_fn_args.max_response_tokens", draft.number(limit), limit)
            draft.put("algorithm.advantage_fn_args.overlong_buffer", draft.number(f"{section}.len"), f"{section}.len")
            factor = f"{section}.penalty_factor"
            draft.put("algorithm.advantage_fn_args.overlong_penalty", draft.value(factor), factor, use)
        else:
            for key in ("len", "penalty_factor"):
                draft.ask(f"{section}.{key}", f"see {use}")
            note = f"{advantage} has no penalty for length: a reward of your own has to"
            draft.gap("buffer.explorer_input.default_reward_fn_type", use, note=note)


def _put_losses(draft: ExperimentDraft, pace: VerlPace) -> None:
    """Sets the policy loss with arguments, and the coefficient of the entropy."""
    mode = f"{_ACTOR}.policy_loss.loss_mode"
    loss = word_of(draft, mode, _LOSSES)
    kind = draft.fields.get(("algorithm", "algorithm_type"), (None, ""))[0]
    if loss == "opmd":
        draft.put("algorithm.policy_loss_fn_args.tau", 0.0, mode, note="so opmd is veRL's gpg")
    if loss == "dppo":
        draft.put("algorithm.policy_loss_fn_args.kl_tau", 0.0, mode, note="veRL's has no such term")
        for key, argument in (("clip_ratio_low", "dppo_mask_low"), ("clip_ratio_high", "dppo_mask_high")):
            draft.put(f"algorithm.policy_loss_fn_args.{argument}", draft.value(f"{_ACTOR}.{key}"), f"{_ACTOR}.{key}")
    if loss is not None and (draft.given(mode) or (kind and registry.lookup(kind).policy_loss != loss)):
        draft.put("algorithm.policy_loss_fn", loss, mode)
    for key, argument in TABLES.words["loss_arguments"].items():
        name = f"{_ACTOR}.{key}"
        if _takes(POLICY_LOSSES, loss, argument):
            draft.put_given(f"algorithm.policy_loss_fn_args.{argument}", name)
        else:
            draft.drop(name, f"the policy loss {loss} has no {argument}")
    _put_aggregation(draft, pace)
    draft.put_given("algorithm.entropy_loss_fn_args.entropy_coef", f"{_ACTOR}.entropy_coeff")


def _put_aggregation(draft: ExperimentDraft, pace: VerlPace) -> None:
    """Converts the old name of an aggregation, and the old weights of tokens, now a correction."""
    old = f"{_ACTOR}.use_token_level_loss"
    if draft.given(old):
        draft.put("algorithm.loss_agg_mode", "token-mean" if draft.flag(old) else "seq-mean-token-mean", old)
    cap = f"{_ACTOR}.tis_imp_ratio_cap"
    if draft.given(cap) and draft.value(cap) > 0:
        draft.put("algorithm.rollout_correction.rollout_is", "token", cap)
        draft.put("algorithm.rollout_correction.rollout_is_threshold", draft.value(cap), cap)
    rejected = f"{_CORRECTION}.rollout_rs"
    if draft.given(rejected) and (criterion := TABLES.words["rejections"].get(draft.value(rejected))):
        draft.put(rejected, criterion, rejected)
    weights = f"{_CORRECTION}.rollout_is"
    if pace.from_rollouts and draft.value(f"{_CORRECTION}.loss_type") == "ppo_clip":
        for name in (weights, f"{weights}_threshold", f"{weights}_batch_normalize"):
            draft.drop(name, "in bypass mode the clipped ratio is to the rollouts: veRL then applies no weights")


def _put_penalties(draft: ExperimentDraft, advantage: str | None) -> None:
    """Sets the KL in the reward and the KL in the loss, each with its coefficient."""
    use = "algorithm.use_kl_in_reward"
    coef = "algorithm.kl_ctrl.kl_coef"
    adaptive = ("type", "horizon", "target_kl")
    if not draft.flag(use):
        draft.put("algorithm.kl_penalty_fn", "none", use)
        for name in ("algorithm.kl_penalty", coef, *(f"algorithm.kl_ctrl.{key}" for key in adaptive)):
            draft.drop(name, f"{use} is false")
    else:
        penalty = "algorithm.kl_penalty"
        word = word_of(draft, penalty, {**_PENALTIES, **{f"{name}+": kind for name, kind in _PENALTIES.items()}})
        draft.put("algorithm.kl_penalty_fn", word, use, penalty)
        draft.put("algorithm.kl_penalty_fn_args.kl_coef", draft.value(coef), coef)
        if draft.value("algorithm.kl_ctrl.type") == "adaptive":
            draft.put("algorithm.kl_penalty_fn_args.adaptive", True, "algorithm.kl_ctrl.type")
            for key in adaptive[1:]:
                name = f"algorithm.kl_ctrl.{key}"
                draft.put(f"algorithm.kl_penalty_fn_args.{key}", draft.value(name), name)
        if advantage and _from_rewards(advantage):
            draft.put("algorithm.kl_penalty_place", "before", note="veRL subtracts it from the rewards")
    use = f"{_ACTOR}.use_kl_loss"
    kind = f"{_ACTOR}.kl_loss_type"
    coef = f"{_ACTOR}.kl_loss_coef"
    if draft.flag(use):
        # With a `+` the reported figure is the estimator's, but the gradient is k2's, and only the gradient trains.
        word = word_of(draft, kind, {**_PENALTIES, **{f"{name}+": "k2" for name in _PENALTIES}})
        note = "its gradient is that of k2" if str(draft.value(kind)).endswith("+") else ""
        draft.put("algorithm.kl_loss_fn", word, use, kind, note=note)
        draft.put("algorithm.kl_loss_fn_args.kl_coef", draft.value(coef), coef)
    else:
        draft.put("algorithm.kl_loss_fn", "none", use)
        draft.drop(kind, f"{use} is false")
        draft.drop(coef, f"{use} is false")


def _from_rewards(advantage: str) -> bool:
    """True if the penalty can be subtracted before the group's normalisation, as in veRL."""
    try:
        check_penalised(ADVANTAGES.open(advantage, {}), advantage)
    except ConfigError:
        return False
    return True


def _put_trainer(draft: ExperimentDraft, pace: VerlPace) -> None:
    """Sets the passes over a batch, the micro-batches and the arguments of the trainer."""
    epochs = f"{_ACTOR}.ppo_epochs"
    draft.put_given("trainer.ppo_epochs", epochs)
    if draft.value(epochs) != 1 and pace.update > 1:
        text = f"veRL goes over all {pace.update} mini-batches and then again; here each is gone over in its turn"
        draft.remark("needs a person", epochs, f"({text})")
    if draft.flag(f"{_ACTOR}.shuffle"):
        draft.ask(
            f"{_ACTOR}.shuffle", "a batch here is one mini-batch of veRL's: it is not shuffled with the next ones"
        )
    else:
        draft.drop(f"{_ACTOR}.shuffle", "rftd does the same")
    put_strategy(draft)
    frequency = "trainer.save_freq"
    if draft.given(frequency):
        every = max(0, draft.number(frequency)) * pace.interval
        draft.put("trainer.save_interval", every, frequency, note=times(pace.interval))
    for name in (f"{_ACTOR}.checkpoint.save_contents", f"{_ACTOR}.checkpoint.contents"):
        contents = draft.value(name)
        if isinstance(contents, list) and "hf_model" in contents:
            draft.put("trainer.save_hf_checkpoint", "always", name)
        else:
            draft.drop(name, "checkpoints hold all that a restart needs")
    limit = "trainer.max_actor_ckpt_to_keep"
    if draft.given(limit):
        draft.put("trainer.max_checkpoints_to_keep", max(0, draft.number(limit)), limit)
    for newest in ("trainer.remove_previous_ckpt_in_save", "trainer.remove_previous_ckpt"):
        if draft.flag(newest):
            draft.put("trainer.max_checkpoints_to_keep", 1, newest)
        else:
            draft.drop(newest, "rftd does the same")
    warmup = "trainer.critic_warmup"
    if draft.given(warmup):
        draft.put(warmup, max(0, draft.number(warmup)) * pace.update, warmup, note=times(pace.update))
    _put_micro_batches(draft)


def _put_micro_batches(draft: ExperimentDraft) -> None:
    """Converts the responses of a micro-batch per GPU, given as the sum over all GPUs in older releases."""
    old = f"{_ACTOR}.ppo_micro_batch_size"
    per_gpu = f"{_ACTOR}.ppo_micro_batch_size_per_gpu"
    if draft.given(per_gpu) or not draft.given(old):
        draft.drop(old, f"see {per_gpu}")
        return
    gpus = draft.number("trainer.nnodes") * draft.number("trainer.n_gpus_per_node")
    share = max(1, draft.number(old) * draft.number(f"{_ACTOR}.ulysses_sequence_parallel_size") // gpus)
    draft.put(f"trainer.trainer_config.{per_gpu}", share, old, note=f"of {gpus} GPUs each")


def _put_adapter(draft: ExperimentDraft) -> None:
    """Adds an entry of `model.lora_configs`, if an adapter is trained."""
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


def _put_critic(draft: ExperimentDraft, pace: VerlPace, *, has_critic: bool) -> None:
    """Sets the critic's fields, or drops all keys of the critic if the algorithm has none."""
    critic_keys = [name for name in draft.settings.given if name.startswith("critic.")]
    if not has_critic:
        for name in critic_keys:
            draft.drop(name, f"{draft.value('algorithm.adv_estimator')} has no critic")
        return
    draft.put_given("model.critic_model_path", "critic.model.path")
    draft.drop("critic.enable", "gae has a critic")
    draft.drop("critic.strategy", "as the policy's")
    size = "critic.ppo_mini_batch_size"
    if draft.value(size) == draft.value(f"{_ACTOR}.ppo_mini_batch_size"):
        draft.drop(size, "as the actor's")
    elif draft.given(size):
        note = "times actor_rollout_ref.rollout.n" if pace.answers > 1 else ""
        draft.put(f"trainer.trainer_config.{size}", draft.number(size) * pace.answers, size, note=note)
    warmup = "critic.optim.lr_warmup_steps"
    if draft.given(warmup):
        steps = draft.number(warmup)
        counted = steps * pace.update if steps > 0 else -1
        draft.put(f"trainer.trainer_config.{warmup}", counted, warmup, note=times(pace.update))
    for name in ("critic.ppo_epochs", "critic.shuffle"):
        draft.put_given(f"trainer.trainer_config.{name}", name)
