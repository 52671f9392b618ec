"""verl's strategy `megatron`: the guide's sizes that act with it, those that are refused, and what is not installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Contradiction, Notes, Unsupported, WrongValue
from rftd.daemon.config.schema.trainer import Trainer
from rftd.workers.devices.engine_build import how_to_install
from rftd.workers.devices.host import Host
from rftd.workers.engines.verl.megatron.sizes import ALONE

Written = tuple[FieldPath, FieldPath, Any]
"""The place of a value in the file, its name in verl's tree, and the value."""

STRATEGY: Final = "megatron"
ACTING: Final = ("tensor_model_parallel_size", "sequence_parallel")
"""Arguments of the engine, by the names that Megatron has for them."""
KERNELS: Final = "transformer-engine"
"""The package without which texts are padded, and not cut over ranks."""
_SECTION: Final[FieldPath] = ("trainer", STRATEGY)
_TREE: Final = ("actor_rollout_ref", "actor", STRATEGY)
_PACKAGES: Final = ("megatron-core", "mbridge")
_LAYERS: Final = "each rank has a part of every layer, and none waits for the layers of another"
_EXPERTS: Final = "no model with experts is trained with Megatron here"
_REFUSED: Final[Mapping[str, str]] = {
    "pipeline_model_parallel_size": _LAYERS,
    "virtual_pipeline_model_parallel_size": _LAYERS,
    "context_parallel_size": "ranks share a text by tensor_model_parallel_size and sequence_parallel",
    "expert_model_parallel_size": _EXPERTS,
    "expert_tensor_parallel_size": _EXPERTS,
}
_OTHERS: Final[Mapping[str, str]] = {
    "override_transformer_config": "layers are as the model's config.json says; computed again by "
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    "override_ddp_config": "gradients are added up by rftd, in float32",
    "override_mcore_model_config": "the model is as its config.json says",
    "use_distributed_optimizer": "ranks that share no tensor hold copies of the moments",
    "use_dist_checkpointing": "checkpoints are those of every strategy",
    "dist_checkpointing_path": "weights are read from model.model_path",
    "param_offload": "weights stay on their device",
    "optimizer_offload": "moments stay on their device",
    "grad_offload": "gradients stay on their device",
}
"""Keys of verl's own section that do nothing."""
_ELSE: Final = "it is a part of veRL's own machinery"


def check_strategies(trainer: Trainer, leaves: list[Written], engine: str, host: Host, notes: Notes) -> str:
    """The strategy by which verl spreads a model. FSDP is replaced by FSDP2, for it gives the same numbers.

    Megatron is refused where it is not installed, and with an engine that has no such thing.
    """
    written: list[tuple[FieldPath, Any]] = []
    if engine == "verl" and "trainer_strategy" in trainer.model_fields_set:
        written.append((("trainer", "trainer_strategy"), trainer.trainer_strategy))
    of_policy = [(place, value) for place, path, value in leaves if path == (*_TREE[:2], "strategy")]
    of_critic = [(place, value) for place, path, value in leaves if path == ("critic", "strategy")]
    for where, strategy in [*written, *of_policy, *of_critic]:
        if strategy == "fsdp" and engine == "verl":
            notes.warn(f"{show(where)} fsdp: FSDP2 spreads the weights instead, to the same numbers")
        elif strategy == STRATEGY and engine != "verl":
            what = f"is {strategy!r}, and {engine} trains: verl has it, with megatron-core"
            notes.wrong(where, what, "write trainer.trainer_type: verl, or leave it out", Unsupported)
        elif strategy not in (None, "fsdp", "fsdp2", STRATEGY):
            notes.wrong(where, f"is {strategy!r}", "write fsdp2 or megatron", Unsupported)
    if engine != "verl":
        return "fsdp2"
    asked = [(where, value) for where, value in [*written, *of_policy] if value is not None]
    chosen = next((where for where, value in asked if value == STRATEGY), None)
    for where, value in [*asked, *of_critic]:
        if value is not None and (value == STRATEGY) != (chosen is not None) and not _missing(host):
            other = "fsdp2" if chosen is None else f"{STRATEGY} in {show(chosen)}"
            what = f"is {value!r}, and the strategy is {other}: all models are spread alike"
            notes.wrong(where, what, "keep one of the two", Contradiction)
    named = [where for where, value in [*asked, *of_critic] if value == STRATEGY]
    if named:
        refuse_missing(named[0], host, notes)
    return STRATEGY if chosen is not None else "fsdp2"


def refuse_missing(where: FieldPath, host: Host, notes: Notes) -> None:
    """Refuses the strategy where it is written, if a package of it is not installed where workers run."""
    if missing := _missing(host):
        verb = "are" if len(missing) > 1 else "is"
        what = f"is {STRATEGY!r}, and {' and '.join(missing)} {verb} not installed where workers run"
        notes.wrong(where, what, f"{how_to_install('megatron')}; or write fsdp2", Unsupported)


def _missing(host: Host) -> list[str]:
    return [name for name in _PACKAGES if name not in host.packages] if host.seen else []


def sizes(trainer: Trainer, leaves: list[Written]) -> Iterator[tuple[str, FieldPath, Any]]:
    """Megatron's own settings in the file: the name of each, its place in the file, and its value."""
    section = trainer.megatron
    for name in sorted(section.model_fields_set):
        yield name, (*_SECTION, name), getattr(section, name)
    for place, path, value in leaves:
        if path[:3] == _TREE and len(path) > 3:
            yield str(path[3]), place, value


def megatron_arguments(trainer: Trainer, leaves: list[Written], host: Host, notes: Notes) -> dict[str, Any]:
    """The arguments of the engine for Megatron's own settings; what cannot act is warned of or refused."""
    found: dict[str, tuple[FieldPath, Any]] = {}
    for name, where, value in sizes(trainer, leaves):
        if name in _REFUSED:
            if value not in (None, 1):
                notes.wrong(where, f"is {value!r}, and {_REFUSED[name]}", "leave it out", Unsupported)
        elif name not in ACTING:
            if value not in (None, False, "", {}):
                notes.warn(f"{show(where)} has no effect: {_OTHERS.get(name, _ELSE)}")
        elif _fits(name, where, value, notes):
            if name in found and found[name][1] != value:
                notes.wrong(
                    where, f"is {value!r}, and {show(found[name][0])} is {found[name][1]!r}", "keep one of the two"
                )
            found[name] = (where, value)
    made: dict[str, Any] = {"strategy": STRATEGY}
    if "tensor_model_parallel_size" in found:
        made["tensor_model_parallel_size"] = found["tensor_model_parallel_size"][1]
    where, cut = found.get("sequence_parallel", ((), True))
    # The guide cuts sequences unless it is told not to; where that cannot be, only who asked for it is told.
    if cut and made.get("tensor_model_parallel_size", 1) > 1:
        if (why := without_kernels(host)) is None:
            made["sequence_parallel"] = True
        elif where:
            notes.warn(f"{show(where)} has no effect: {why}")
    return made


def without_kernels(host: Host) -> str | None:
    """The reason why texts are padded and whole on each rank; None if they need not be."""
    if not host.seen or (host.gpus and KERNELS in host.packages):
        return None
    return "verl trains on the CPU" if not host.gpus else f"{KERNELS} is not installed where workers run"


def warn_without_megatron(trainer: Trainer, leaves: list[Written], engine: str, notes: Notes) -> None:
    """Warns of Megatron's own settings where another strategy or engine trains."""
    trains = "FSDP2" if engine == "verl" else engine
    for name, where, value in sizes(trainer, leaves):
        # True is 1 as well: it asks for something, but for what Megatron does unless it is told not to.
        neutral = value is True if name == "sequence_parallel" else value == 1 and value is not True
        if value not in (None, False, "", {}) and not neutral:
            notes.warn(f"{show(where)} has no effect: it is Megatron's, and {trains} trains")


def only_fsdp2(name: str, where: FieldPath, value: Any, notes: Notes) -> bool:
    """True, said in a warning, if the argument is one that FSDP2 has and Megatron has not."""
    if name not in ALONE or value in (False, -1, 1):
        return name in ALONE or name in ("forward_prefetch", "reshard_after_forward")
    notes.warn(f"{show(where)} has no effect: it is FSDP2's, and Megatron spreads the weights")
    return True


def _fits(name: str, where: FieldPath, value: Any, notes: Notes) -> bool:
    """True if the value is one; the schema does not look into verl's own tree."""
    if value is None:
        return False
    if name == "sequence_parallel":
        right = isinstance(value, bool)
        wanted = "true or false"
    else:
        right = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        wanted = "a whole number of at least 1"
    if not right:
        notes.wrong(where, f"is {value!r}", f"write {wanted}", WrongValue)
    return right
