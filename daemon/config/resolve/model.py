"""Section `model`: the lengths that are derived, and the adapter that is trained instead of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Contradiction, Notes, WrongValue
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.explorer import RolloutModel
from rftd.daemon.config.schema.model import Lora, Model
from rftd.streams.spec.spec import LoraSpec, ModelSpec
from rftd.workers.generation.endpoint.answer_form import THOUGHT_FORMS, TOOL_FORMS

_AT: Final[FieldPath] = ("model", "lora_configs")

OF_ROLLOUTS: Final = {
    **{name: name for name in ("temperature", "top_p", "top_k", "repetition_penalty", "enable_thinking")},
    "chat_template": "custom_chat_template",
}
"""Fields of `explorer.rollout_model` that stand in the place of fields of `model` where there are rollouts."""


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """Lengths in tokens; prompt and response together fit into the model."""

    model: int
    prompt: int
    response: int
    min_response: int


def as_explored(experiment: Experiment) -> Experiment:
    """The experiment with what `explorer.rollout_model` says of sampling and template in the place of `model`'s."""
    given = experiment.explorer.rollout_model
    own = {name: getattr(given, field) for field, name in OF_ROLLOUTS.items() if getattr(given, field) is not None}
    return experiment.model_copy(update={"model": experiment.model.model_copy(update=own)})


def derive_lengths(model: Model, notes: Notes) -> LengthLimits | None:
    """The lengths, or None after saying why there are none."""
    total = model.max_model_len
    prompt = model.max_prompt_tokens
    response = model.max_response_tokens
    if total is None:
        if prompt is None or response is None:
            fix = "set max_model_len, or both max_prompt_tokens and max_response_tokens"
            notes.wrong(("model", "max_model_len"), "cannot be derived", fix)
            return None
        total = prompt + response
    elif prompt is not None and response is not None:
        if prompt + response > total:
            what = f"is {total}, less than max_prompt_tokens + max_response_tokens = {prompt} + {response}"
            notes.wrong(("model", "max_model_len"), what, f"set it to {prompt + response}, or lower one of the two")
            return None
    elif total < 2:
        notes.wrong(("model", "max_model_len"), "must leave room for a prompt and a response: at least 2")
        return None
    elif prompt is None and response is None:
        prompt = total // 2
    if prompt is None:
        # The branches above leave one of the two unknown at most; the other follows from the total.
        assert response is not None
        response = _clip("max_response_tokens", response, total, notes)
        prompt = total - response
    if response is None:
        prompt = _clip("max_prompt_tokens", prompt, total, notes)
        response = total - prompt
    shortest = model.min_response_tokens
    # A response of its full length must be able to end: one token is left for the end of the text.
    if shortest >= response:
        notes.warn(f"model.min_response_tokens {shortest} is not below max_response_tokens: {response - 1} is used")
        shortest = response - 1
    return LengthLimits(total, prompt, response, shortest)


def _clip(name: str, given: int, total: int, notes: Notes) -> int:
    if given < total:
        return given
    notes.warn(f"model.{name} {given} does not fit into max_model_len {total}: {total - 1} is used")
    return total - 1


def with_answer_form(model: ModelSpec, given: RolloutModel, notes: Notes) -> ModelSpec:
    """The model with the forms in which the endpoint reads its thoughts and its calls of tools."""
    for name, known in (("tool_call_parser", TOOL_FORMS), ("reasoning_parser", THOUGHT_FORMS)):
        written = getattr(given, name)
        if written is not None and written not in known:
            what = f"is {written!r}, which rftd does not read"
            notes.wrong(("explorer", "rollout_model", name), what, f"write one of {', '.join(known)}", WrongValue)
    return msgspec.structs.replace(
        model,
        tool_call_parser=given.tool_call_parser or "",
        reasoning_parser=given.reasoning_parser or "",
        auto_tool_choice=given.enable_auto_tool_choice is not False,
    )


def resolve_lora(given: Model, notes: Notes) -> LoraSpec | None:
    """The adapter that is trained, or None."""
    entries = given.lora_configs or []
    if not entries:
        return None
    if len(entries) > 1:
        what = f"names {len(entries)} adapters, and a run trains one"
        notes.wrong(_AT, what, f"keep {entries[0].name!r} alone, and submit a run for each other", Contradiction)
    entry = entries[0]
    if entry.base_model_name not in (None, given.model_path):
        notes.warn("model.lora_configs[0].base_model_name has no effect: the adapter belongs to model.model_path")
    # Adam's updates of an adapter are smaller than bfloat16's resolution around typical weights.
    if entry.lora_dtype not in ("auto", "float32"):
        notes.warn("model.lora_configs[0].lora_dtype has no effect: adapters are trained in float32")
    return LoraSpec(
        name=entry.name,
        path=entry.path or "",
        rank=entry.lora_rank,
        alpha=entry.lora_alpha,
        target_modules=_modules(entry, "target_modules", notes) or ("all-linear",),
        exclude_modules=_modules(entry, "exclude_modules", notes),
    )


def _modules(entry: Lora, field: str, notes: Notes) -> tuple[str, ...]:
    given: Any = getattr(entry, field)
    if given is None:
        return ()
    names = [given] if isinstance(given, str) else given
    if isinstance(names, list) and all(isinstance(name, str) and name for name in names):
        return tuple(names)
    notes.wrong(
        (*_AT, 0, field), f"{given!r} is no list of module names", "write [q_proj, v_proj] or all-linear", WrongValue
    )
    return ()
