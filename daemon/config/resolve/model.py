"""Section `model`: derived lengths, and the adapter to train instead of the whole model."""

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
"""Section of the adapters."""

MODEL_FIELD_BY_ROLLOUT_FIELD: Final = {
    **{name: name for name in ("temperature", "top_p", "top_k", "repetition_penalty", "enable_thinking")},
    "chat_template": "custom_chat_template",
}
"""Fields of `explorer.rollout_model` that override fields of `model` during rollouts."""


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """Lengths in tokens; prompt and response together fit into the model."""

    model: int
    """Maximum tokens of prompt and response together."""
    prompt: int
    """Maximum tokens of a prompt."""
    response: int
    """Maximum tokens of a response."""
    min_response: int
    """Minimum tokens of a response."""


def as_explored(experiment: Experiment) -> Experiment:
    """Returns the experiment with `explorer.rollout_model`'s sampling and template in place of those of `model`."""
    rollout_model = experiment.explorer.rollout_model
    overrides = {
        name: getattr(rollout_model, field)
        for field, name in MODEL_FIELD_BY_ROLLOUT_FIELD.items()
        if getattr(rollout_model, field) is not None
    }
    return experiment.model_copy(update={"model": experiment.model.model_copy(update=overrides)})


def derive_lengths(model: Model, notes: Notes) -> LengthLimits | None:
    """Returns the length limits of the model; None, after adding an issue to `notes`, if they contradict each other."""
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
            problem = f"is {total}, less than max_prompt_tokens + max_response_tokens = {prompt} + {response}"
            notes.wrong(("model", "max_model_len"), problem, f"set it to {prompt + response}, or lower one of the two")
            return None
    elif total < 2:
        notes.wrong(("model", "max_model_len"), "must leave room for a prompt and a response: at least 2")
        return None
    elif prompt is None and response is None:
        prompt = total // 2
    if prompt is None:
        # At most one of the two is still unset here, and follows from the total.
        assert response is not None
        response = _clip("max_response_tokens", response, total, notes)
        prompt = total - response
    if response is None:
        prompt = _clip("max_prompt_tokens", prompt, total, notes)
        response = total - prompt
    shortest = model.min_response_tokens
    # A response of full length must be able to end: one token is reserved for the end of the text.
    if shortest >= response:
        notes.warn(f"model.min_response_tokens {shortest} is not below max_response_tokens: {response - 1} is used")
        shortest = response - 1
    return LengthLimits(total, prompt, response, shortest)


def _clip(name: str, length: int, total: int, notes: Notes) -> int:
    """Returns a length below the model's, with a warning if lowered."""
    if length < total:
        return length
    notes.warn(f"model.{name} {length} does not fit into max_model_len {total}: {total - 1} is used")
    return total - 1


def with_answer_form(model: ModelSpec, rollout_model: RolloutModel, notes: Notes) -> ModelSpec:
    """Returns the model with the formats used by the endpoint to parse reasoning and tool calls."""
    for name, formats in (("tool_call_parser", TOOL_FORMS), ("reasoning_parser", THOUGHT_FORMS)):
        parser_name = getattr(rollout_model, name)
        if parser_name is not None and parser_name not in formats:
            problem = f"is {parser_name!r}, which is not supported"
            notes.wrong(("explorer", "rollout_model", name), problem, f"write one of {', '.join(formats)}", WrongValue)
    return msgspec.structs.replace(
        model,
        tool_call_parser=rollout_model.tool_call_parser or "",
        reasoning_parser=rollout_model.reasoning_parser or "",
        auto_tool_choice=rollout_model.enable_auto_tool_choice is not False,
    )


def resolve_lora(section: Model, notes: Notes) -> LoraSpec | None:
    """Returns the adapter to train; None to train all weights of the model. More than one adapter is refused."""
    adapters = section.lora_configs or []
    if not adapters:
        return None
    if len(adapters) > 1:
        problem = f"has {len(adapters)} adapters, but a run trains only one"
        notes.wrong(
            _AT, problem, f"keep {adapters[0].name!r}, and submit a separate run for each of the others", Contradiction
        )
    adapter = adapters[0]
    if adapter.base_model_name not in (None, section.model_path):
        notes.warn("model.lora_configs[0].base_model_name has no effect: the adapter belongs to model.model_path")
    # Adam's updates of an adapter are smaller than bfloat16's resolution around typical weights.
    if adapter.lora_dtype not in ("auto", "float32"):
        notes.warn("model.lora_configs[0].lora_dtype has no effect: adapters are trained in float32")
    return LoraSpec(
        name=adapter.name,
        path=adapter.path or "",
        rank=adapter.lora_rank,
        alpha=adapter.lora_alpha,
        target_modules=_modules(adapter, "target_modules", notes) or ("all-linear",),
        exclude_modules=_modules(adapter, "exclude_modules", notes),
    )


def _modules(adapter: Lora, field: str, notes: Notes) -> tuple[str, ...]:
    """Returns the names of modules in a field of an adapter; empty if unset, or, with an issue, if malformed."""
    modules: Any = getattr(adapter, field)
    if modules is None:
        return ()
    names = [modules] if isinstance(modules, str) else modules
    if isinstance(names, list) and all(isinstance(name, str) and name for name in names):
        return tuple(names)
    notes.wrong(
        (*_AT, 0, field),
        f"{modules!r} is not a list of module names",
        "write [q_proj, v_proj] or all-linear",
        WrongValue,
    )
    return ()
