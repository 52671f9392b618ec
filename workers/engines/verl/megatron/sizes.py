"""Checks of model, sizes and packages for Megatron: pure functions of numbers, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rftd.ops.errors import ConfigError
from rftd.workers.devices.device_memory import settings_of
from rftd.workers.engines.verl.arguments import VerlTrainerArgs

MODEL_TYPES: Final = ("llama", "qwen2", "qwen3")
"""Model types with known correspondence between Megatron's and transformers' parameter names."""
_ARGUMENTS: Final = "trainer.engine_args"
"""Field of the experiment file with the engine's arguments."""
_MODULES: Final = {"megatron.core": "megatron-core", "mbridge": "mbridge"}
"""Packages to install, by the module."""
_ENGINE: Final = "transformer_engine"
"""The package with layers for packed texts and for sequences divided over ranks."""
_FSDP2_FIX: Final = "write trainer.trainer_strategy: fsdp2"
"""Advice for models and sizes that Megatron does not support here."""
FSDP2_ONLY_ARGUMENTS: Final[Mapping[str, str]] = {
    "ulysses_sequence_parallel_size": "write trainer.megatron.tensor_model_parallel_size",
    "fsdp_size": "leave it out: ranks that share no tensor hold copies",
    "param_offload": "leave it out: weights stay on their device",
    "optimizer_offload": "leave it out: moments stay on their device",
    "ref_param_offload": "leave it out: weights stay on their device",
    "activation_offload": "write trainer.engine_args.gradient_checkpointing",
    "entropy_checkpointing": "leave it out",
}
"""Arguments that only FSDP2 supports, each with the fix."""


def check_installed(field: str) -> None:
    """Raises ConfigError for a missing package of Megatron's."""
    missing = [package for module, package in _MODULES.items() if not _has(module)]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not installed where the trainer runs",
            field=field,
            fix=f"pip install 'rftd[megatron]', or {_FSDP2_FIX}",
        )


def _has(module: str) -> bool:
    """True if a module is installed."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False


def with_transformer_engine(arguments: VerlTrainerArgs) -> bool:
    """True if layers of transformer-engine are needed: for texts without padding and for divided sequences."""
    return arguments.use_remove_padding or cuts_sequences(arguments)


def cuts_sequences(arguments: VerlTrainerArgs) -> bool:
    """True if the positions of a text are divided over the ranks that share a tensor."""
    return arguments.sequence_parallel and arguments.tensor_model_parallel_size > 1


def check_arguments(arguments: VerlTrainerArgs, dtype: str, *, ranks: int, on_cpu: bool) -> None:
    """Raises ConfigError for arguments that Megatron does not support with this dtype, number of ranks and device."""
    plain = VerlTrainerArgs()
    for name, fix in FSDP2_ONLY_ARGUMENTS.items():
        if getattr(arguments, name) != getattr(plain, name):
            raise ConfigError(
                f"is {getattr(arguments, name)!r}, and Megatron has no such thing",
                field=f"{_ARGUMENTS}.{name}",
                fix=fix,
            )
    tensor = arguments.tensor_model_parallel_size
    if ranks % tensor:
        raise ConfigError(
            f"is {tensor}, which does not divide {ranks} ranks",
            field=f"{_ARGUMENTS}.tensor_model_parallel_size",
            fix="choose a divisor of the number of ranks",
        )
    if with_transformer_engine(arguments) and (on_cpu or not _has(_ENGINE)):
        name = "use_remove_padding" if arguments.use_remove_padding else "sequence_parallel"
        why = "transformer-engine computes on GPUs alone" if on_cpu else "transformer-engine is not installed"
        raise ConfigError(f"is true, and {why}", field=f"{_ARGUMENTS}.{name}", fix="write false")
    if arguments.use_remove_padding and dtype == "float32":
        raise ConfigError(
            "is true, and transformer-engine attends over texts without padding in bfloat16 alone",
            field=f"{_ARGUMENTS}.use_remove_padding",
            fix="write false, or trainer.engine_args.dtype: bfloat16",
        )
    if arguments.gradient_checkpointing and on_cpu:
        raise ConfigError(
            "is true, and Megatron keeps the random numbers of layers that it computes again on a GPU alone",
            field=f"{_ARGUMENTS}.gradient_checkpointing",
            fix="write false",
        )


def check_model(folder: Path, arguments: VerlTrainerArgs) -> None:
    """Raises ConfigError for a decoder unknown here, or with sizes not divisible by the tensor-parallel ranks."""
    config = settings_of(folder)
    if not config:  # whoever loads it says what is wrong
        return
    for trait in _unknown(config):
        raise ConfigError(f"Megatron does not train this model here: {trait}", field="model.model_path", fix=_FSDP2_FIX)
    ranks = arguments.tensor_model_parallel_size
    heads = config.get("num_attention_heads", 0)
    for trait, size in {
        "attention heads": heads,
        "groups of heads (num_key_value_heads)": config.get("num_key_value_heads") or heads,
        "rows of its projections (intermediate_size)": config.get("intermediate_size", 0),
        "tokens of its vocabulary": config.get("vocab_size", 0),
    }.items():
        if isinstance(size, int) and size % ranks:
            raise ConfigError(
                f"is {ranks}, which does not divide the model's {size} {trait}",
                field=f"{_ARGUMENTS}.tensor_model_parallel_size",
                fix="choose a divisor of it",
            )


def _unknown(config: Mapping[str, Any]) -> Iterator[str]:
    """Yields the traits of a model that are not supported, in words."""
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        yield f"its type is {kind!r}, and {', '.join(MODEL_TYPES)} are known"
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling != "default":
        yield f"its positions are scaled ({scaling})"
    if config.get("use_sliding_window"):
        yield "it attends within a sliding window"
    for bias in ("attention_bias", "mlp_bias"):
        if config.get(bias):
            yield f"its config.json says {bias}"
    if (activation := config.get("hidden_act", "silu")) != "silu":
        yield f"its activation is {activation}"
