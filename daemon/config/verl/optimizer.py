"""Rules for the optimizer, and for the engine that trains with it: FSDP or another one of veRL's."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

from rftd.daemon.config.issue import Unsupported, WrongValue
from rftd.daemon.config.verl.draft import ExperimentDraft

_ACTOR: Final = "actor_rollout_ref.actor"
_OPTIM: Final = f"{_ACTOR}.optim"
_STRATEGIES: Final[Mapping[str, str]] = {
    **{"fsdp": "fsdp", "fsdp2": "fsdp2", "fsdp_turbo": "fsdp2", "megatron": "megatron"},
    **{"veomni": "fsdp2", "torchtitan": "fsdp2", "automodel": "fsdp2", "mlite": "fsdp2", "dp": ""},
}
"""veRL's engines, and the strategy here that trains the same; `dp` leaves it to `actor.strategy`."""
_SCHEDULES: Final = tuple(f"{_OPTIM}.{key}" for key in ("lr_scheduler_type", "warmup_style", "lr_decay_style"))
_DECAYS: Final[Mapping[str, str]] = {"veomni": "cosine", "torchtitan": "linear", "automodel": "cosine"}
"""The schedules that engines have where none is given."""
_SIZES: Final = ("pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size")
"""Sizes of Megatron's that the strategy `megatron` here has not."""


def word_of(draft: ExperimentDraft, name: str, known: Mapping[str, Any]) -> Any:
    """The entry of a word that veRL takes; an issue and None if there is none here."""
    word = str(draft.value(name)).lower()
    if word in known:
        return known[word]
    near = difflib.get_close_matches(word, known, 1)
    fix = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    draft.wrong(name, f"{word!r} is nothing that rftd has", fix, WrongValue if near else Unsupported)
    return None


def times(interval: int) -> str:
    """The note of a number of veRL's steps."""
    return f"{interval} steps here are one of veRL's" if interval > 1 else ""


def put_optimizer(draft: ExperimentDraft, interval: int) -> None:
    """The fields of `algorithm.optimizer`. `interval` is how many steps here are one of the schedule's."""
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
    """The schedule and the rate at which it ends, which engines give in words of their own."""
    names = [name for name in (*_SCHEDULES, f"{_OPTIM}.decay_type") if draft.given(name)]
    schedules = {"constant": "constant", "cosine": "cosine"}
    for name in names:
        draft.put("algorithm.optimizer.lr_scheduler_type", word_of(draft, name, schedules), name)
    cosine = any(draft.value(name) == "cosine" for name in names)
    engine = _engine(draft)
    if not names and (decay := _DECAYS.get(engine)):
        if decay not in schedules:
            what = f"is not given, and {engine} then has {decay}, which rftd has not"
            draft.wrong(_SCHEDULES[0], what, "give constant or cosine", Unsupported)
        draft.put("algorithm.optimizer.lr_scheduler_type", decay, note=f"veRL's default with {engine}")
        cosine = decay == "cosine"
    _put_last_rate(draft, cosine=cosine)


def _put_last_rate(draft: ExperimentDraft, *, cosine: bool) -> None:
    """The share of the learning rate at which a cosine ends: given as it is, or as a rate."""
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
    """veRL's engine by its name: that of `model_engine`, else of `actor.strategy`."""
    chosen = str(draft.value("model_engine") or "dp").lower()
    return chosen if chosen != "dp" else str(draft.value(f"{_ACTOR}.strategy")).lower()


def put_strategy(draft: ExperimentDraft) -> None:
    """`trainer.trainer_strategy`: FSDP2 where rftd has not the engine, or not its sizes; the numbers are the same."""
    target = "trainer.trainer_strategy"
    given = [name for name in ("model_engine", f"{_ACTOR}.strategy") if draft.given(name)]
    for name in given:
        word_of(draft, name, _STRATEGIES)
    strategy = _STRATEGIES.get(_engine(draft), "")
    if not given or not strategy:
        for name in given:
            draft.drop(name, "so it is here")
        return
    sizes = [f"{_ACTOR}.megatron.{key}" for key in _SIZES]
    shared = [name for name in sizes if draft.given(name) and draft.value(name) != 1]
    if strategy == "megatron" and shared:
        draft.put(target, "fsdp2", *given, *shared, note="rftd shares a model so by FSDP2 alone")
        draft.drop(f"{_ACTOR}.megatron.tensor_model_parallel_size", "the model is trained with FSDP2")
        draft.drop(f"{_ACTOR}.megatron.sequence_parallel", "the model is trained with FSDP2")
        return
    note = "" if strategy == _engine(draft) else "FSDP2 stands for it: it changes speed or memory alone"
    draft.put(target, strategy, *given, note=note)
