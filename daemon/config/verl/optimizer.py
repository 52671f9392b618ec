"""Rules for the optimizer, and for the training engine: FSDP or another engine of veRL."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

from rftd.daemon.config.issue import Unsupported, WrongValue
from rftd.daemon.config.verl.draft import ExperimentDraft

_ACTOR: Final = "actor_rollout_ref.actor"
"""Section of the actor in veRL's configuration."""
_OPTIM: Final = f"{_ACTOR}.optim"
"""Section of the optimizer in veRL's configuration."""
_STRATEGIES: Final[Mapping[str, str]] = {
    **{"fsdp": "fsdp", "fsdp2": "fsdp2", "fsdp_turbo": "fsdp2", "megatron": "megatron"},
    **{"veomni": "fsdp2", "torchtitan": "fsdp2", "automodel": "fsdp2", "mlite": "fsdp2", "dp": ""},
}
"""veRL's engines, and rftd's equivalent strategy; `dp` defers to `actor.strategy`."""
_SCHEDULES: Final = tuple(f"{_OPTIM}.{key}" for key in ("lr_scheduler_type", "warmup_style", "lr_decay_style"))
"""Keys for the schedule of the learning rate, under the names of several engines."""
_DECAYS: Final[Mapping[str, str]] = {"veomni": "cosine", "torchtitan": "linear", "automodel": "cosine"}
"""Default schedules of engines."""
_SIZES: Final = ("pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size")
"""Megatron's sizes not supported by rftd's strategy `megatron`."""


def word_of(draft: ExperimentDraft, name: str, known_words: Mapping[str, Any]) -> Any:
    """Returns rftd's counterpart of a word accepted by veRL for the key; None, after adding an issue, if
    there is none.
    """
    word = str(draft.value(name)).lower()
    if word in known_words:
        return known_words[word]
    near = difflib.get_close_matches(word, known_words, 1)
    fix = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known_words)}"
    draft.wrong(name, f"{word!r} has no counterpart in rftd", fix, WrongValue if near else Unsupported)
    return None


def times(interval: int) -> str:
    """Returns the remark for the report about a number of steps multiplied by `interval`."""
    return f"{interval} steps here are one of veRL's" if interval > 1 else ""


def put_optimizer(draft: ExperimentDraft, interval: int) -> None:
    """Sets the fields of `algorithm.optimizer`. `interval` is the number of rftd's steps per step of the schedule."""
    draft.put_given("algorithm.optimizer.lr", f"{_OPTIM}.lr")
    warmup = f"{_OPTIM}.lr_warmup_steps"
    if draft.given(warmup):
        steps = draft.number(warmup)
        counted = steps * interval if steps > 0 else -1
        draft.put("algorithm.optimizer.lr_warmup_steps", counted, warmup, note=times(interval))
    _put_schedule(draft)
    for kind in (f"{_OPTIM}.optimizer", f"{_OPTIM}.name"):
        if draft.given(kind):
            kinds = {"adamw": "adamw", "adam": "adam", "sgd": "sgd"}
            draft.put("algorithm.optimizer.optimizer_type", word_of(draft, kind, kinds), kind)


def _put_schedule(draft: ExperimentDraft) -> None:
    """Sets the schedule and its final rate, under the engines' differing names."""
    names = [name for name in (*_SCHEDULES, f"{_OPTIM}.decay_type") if draft.given(name)]
    schedules = {"constant": "constant", "cosine": "cosine"}
    for name in names:
        draft.put("algorithm.optimizer.lr_scheduler_type", word_of(draft, name, schedules), name)
    cosine = any(draft.value(name) == "cosine" for name in names)
    engine = _engine(draft)
    if not names and (decay := _DECAYS.get(engine)):
        if decay not in schedules:
            problem = f"is not set, and {engine}'s default {decay} is not supported by rftd"
            draft.wrong(_SCHEDULES[0], problem, "give constant or cosine", Unsupported)
        draft.put("algorithm.optimizer.lr_scheduler_type", decay, note=f"veRL's default with {engine}")
        cosine = decay == "cosine"
    _put_last_rate(draft, cosine=cosine)


def _put_last_rate(draft: ExperimentDraft, *, cosine: bool) -> None:
    """Sets the final share of the learning rate of a cosine, given as a share or as a rate."""
    target = "algorithm.optimizer.min_lr_ratio"
    rate = f"{_OPTIM}.lr"
    for name in (f"{_OPTIM}.min_lr", f"{_OPTIM}.lr_min"):
        lowest = draft.given(name)
        if lowest is None or not cosine:
            draft.drop(name, "a constant rate has no lowest")
        elif isinstance(lowest.value, int | float) and isinstance(draft.value(rate), int | float):
            draft.put(target, lowest.value / draft.value(rate), name, rate, note="the one by the other")
            return
        else:
            draft.ask(name, f"write its share of the learning rate as {target}")
    for name in (f"{_OPTIM}.min_lr_ratio", f"{_OPTIM}.min_lr_factor"):
        if draft.given(name):
            draft.put(target, draft.value(name), name)
            return
    if cosine:
        lowest_share = f"{_OPTIM}.min_lr_ratio"
        draft.put(target, draft.value(lowest_share), lowest_share)


def _engine(draft: ExperimentDraft) -> str:
    """Returns the name of veRL's engine: `model_engine`, otherwise `actor.strategy`."""
    chosen = str(draft.value("model_engine") or "dp").lower()
    return chosen if chosen != "dp" else str(draft.value(f"{_ACTOR}.strategy")).lower()


def put_strategy(draft: ExperimentDraft) -> None:
    """Sets `trainer.trainer_strategy`: FSDP2 if rftd lacks the engine or its sizes; the numbers are equal."""
    target = "trainer.trainer_strategy"
    strategy_keys = [name for name in ("model_engine", f"{_ACTOR}.strategy") if draft.given(name)]
    for name in strategy_keys:
        word_of(draft, name, _STRATEGIES)
    strategy = _STRATEGIES.get(_engine(draft), "")
    if not strategy_keys or not strategy:
        for name in strategy_keys:
            draft.drop(name, "rftd does the same")
        return
    sizes = [f"{_ACTOR}.megatron.{key}" for key in _SIZES]
    shared = [name for name in sizes if draft.given(name) and draft.value(name) != 1]
    if strategy == "megatron" and shared:
        draft.put(target, "fsdp2", *strategy_keys, *shared, note="rftd only supports these sizes with FSDP2")
        draft.drop(f"{_ACTOR}.megatron.tensor_model_parallel_size", "the model is trained with FSDP2")
        draft.drop(f"{_ACTOR}.megatron.sequence_parallel", "the model is trained with FSDP2")
        return
    note = "" if strategy == _engine(draft) else "replaced by FSDP2: only speed and memory differ"
    draft.put(target, strategy, *strategy_keys, note=note)
