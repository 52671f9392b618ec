"""verl's strategy `megatron`: acting sizes of the guide, refused sizes, and missing packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Contradiction, Notes, Unsupported, WrongValue
from rftd.daemon.config.schema.trainer import Trainer
from rftd.workers.devices.engine_build import how_to_install
from rftd.workers.devices.host import Host
from rftd.workers.engines.verl.megatron.sizes import FSDP2_ONLY_ARGUMENTS

Written = tuple[FieldPath, FieldPath, Any]
"""Path of a setting in the file, name in verl's tree, and value."""

STRATEGY: Final = "megatron"
"""Name of the strategy."""
ACTING: Final = ("tensor_model_parallel_size", "sequence_parallel")
"""Arguments of the engine set by Megatron's settings, under Megatron's names."""
KERNELS: Final = "transformer-engine"
"""Package without which texts have to be padded, and cannot be split across ranks."""
_SECTION: Final[FieldPath] = ("trainer", STRATEGY)
"""Section of Megatron's settings in the file."""
_TREE: Final = ("actor_rollout_ref", "actor", STRATEGY)
"""Section of Megatron's settings in verl's tree."""
_PACKAGES: Final = ("megatron-core", "mbridge")
"""Packages needed by Megatron."""
_LAYERS: Final = "pipeline parallelism is not supported"
"""Reason for refusing pipeline parallelism."""
_EXPERTS: Final = "models with experts are not supported with Megatron"
"""Reason for refusing expert parallelism."""
_REFUSED: Final[Mapping[str, str]] = {
    "pipeline_model_parallel_size": _LAYERS,
    "virtual_pipeline_model_parallel_size": _LAYERS,
    "context_parallel_size": "sequences are split by tensor_model_parallel_size and sequence_parallel",
    "expert_model_parallel_size": _EXPERTS,
    "expert_tensor_parallel_size": _EXPERTS,
}
"""Refused settings, each with the reason."""
_KEYS_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "override_transformer_config": "layers follow the model's config.json; recomputation is set by "
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    "override_ddp_config": "gradients are added up by rftd, in float32",
    "override_mcore_model_config": "the model follows its config.json",
    "use_distributed_optimizer": "data-parallel ranks hold copies of the moments",
    "use_dist_checkpointing": "checkpoints have the same form for every strategy",
    "dist_checkpointing_path": "weights are read from model.model_path",
    "param_offload": "weights stay on their device",
    "optimizer_offload": "moments stay on their device",
    "grad_offload": "gradients stay on their device",
}
"""Keys of verl's section without effect."""
_ELSE: Final = "internal to veRL"
"""Reason for other keys of verl without effect."""


def check_strategies(trainer: Trainer, leaves: list[Written], engine: str, host: Host, notes: Notes) -> str:
    """Returns the parallel strategy used by verl. FSDP is replaced by FSDP2, with identical results.

    Megatron is refused if not installed, or with an engine lacking the strategy.
    """
    trainer_setting: list[tuple[FieldPath, Any]] = []
    if engine == "verl" and "trainer_strategy" in trainer.model_fields_set:
        trainer_setting.append((("trainer", "trainer_strategy"), trainer.trainer_strategy))
    of_policy = [(field_path, setting) for field_path, path, setting in leaves if path == (*_TREE[:2], "strategy")]
    of_critic = [(field_path, setting) for field_path, path, setting in leaves if path == ("critic", "strategy")]
    for where, strategy in [*trainer_setting, *of_policy, *of_critic]:
        if strategy == "fsdp" and engine == "verl":
            notes.warn(f"{show(where)} fsdp: FSDP2 is used instead, with the same numbers")
        elif strategy == STRATEGY and engine != "verl":
            problem = f"is {strategy!r}, but {engine} trains: only verl supports it, with megatron-core"
            notes.wrong(where, problem, "write trainer.trainer_type: verl, or leave it out", Unsupported)
        elif strategy not in (None, "fsdp", "fsdp2", STRATEGY):
            notes.wrong(where, f"is {strategy!r}", "write fsdp2 or megatron", Unsupported)
    if engine != "verl":
        return "fsdp2"
    policy_settings = [(where, setting) for where, setting in [*trainer_setting, *of_policy] if setting is not None]
    megatron_path = next((where for where, setting in policy_settings if setting == STRATEGY), None)
    for where, setting in [*policy_settings, *of_critic]:
        if setting is not None and (setting == STRATEGY) != (megatron_path is not None) and not _missing(host):
            expected = "fsdp2" if megatron_path is None else f"{STRATEGY} in {show(megatron_path)}"
            problem = f"is {setting!r}, but the strategy is {expected}: all models use the same strategy"
            notes.wrong(where, problem, "keep one of the two", Contradiction)
    named = [where for where, setting in [*policy_settings, *of_critic] if setting == STRATEGY]
    if named:
        refuse_missing(named[0], host, notes)
    return STRATEGY if megatron_path is not None else "fsdp2"


def refuse_missing(where: FieldPath, host: Host, notes: Notes) -> None:
    """Adds an issue at `where`, the strategy's field, if a package that Megatron needs is missing on the workers'
    machine.
    """
    if missing := _missing(host):
        verb = "are" if len(missing) > 1 else "is"
        problem = f"is {STRATEGY!r}, but {' and '.join(missing)} {verb} not installed where workers run"
        notes.wrong(where, problem, f"{how_to_install('megatron')}; or write fsdp2", Unsupported)


def _missing(host: Host) -> list[str]:
    """Returns the missing packages; empty for a host not inspected."""
    return [name for name in _PACKAGES if name not in host.packages] if host.seen else []


def sizes(trainer: Trainer, leaves: list[Written]) -> Iterator[tuple[str, FieldPath, Any]]:
    """Yields Megatron's settings written in the file: name, path in the file, and value."""
    section = trainer.megatron
    for name in sorted(section.model_fields_set):
        yield name, (*_SECTION, name), getattr(section, name)
    for field_path, path, setting in leaves:
        if path[:3] == _TREE and len(path) > 3:
            yield str(path[3]), field_path, setting


def megatron_arguments(trainer: Trainer, leaves: list[Written], host: Host, notes: Notes) -> dict[str, Any]:
    """Returns the engine's arguments for Megatron's settings; settings without effect cause warnings or issues."""
    settings: dict[str, tuple[FieldPath, Any]] = {}
    for name, where, setting in sizes(trainer, leaves):
        if name in _REFUSED:
            if setting not in (None, 1):
                notes.wrong(where, f"is {setting!r}, but {_REFUSED[name]}", "leave it out", Unsupported)
        elif name not in ACTING:
            if setting not in (None, False, "", {}):
                notes.warn(f"{show(where)} has no effect: {_KEYS_WITHOUT_EFFECT.get(name, _ELSE)}")
        elif _fits(name, where, setting, notes):
            if name in settings and settings[name][1] != setting:
                notes.wrong(
                    where,
                    f"is {setting!r}, and {show(settings[name][0])} is {settings[name][1]!r}",
                    "keep one of the two",
                )
            settings[name] = (where, setting)
    arguments: dict[str, Any] = {"strategy": STRATEGY}
    if "tensor_model_parallel_size" in settings:
        arguments["tensor_model_parallel_size"] = settings["tensor_model_parallel_size"][1]
    where, cut = settings.get("sequence_parallel", ((), True))
    # The guide splits sequences by default; if unavailable, only an explicit request is answered by a warning.
    if cut and arguments.get("tensor_model_parallel_size", 1) > 1:
        if (why := without_kernels(host)) is None:
            arguments["sequence_parallel"] = True
        elif where:
            notes.warn(f"{show(where)} has no effect: {why}")
    return arguments


def without_kernels(host: Host) -> str | None:
    """Returns why texts are padded and not split across ranks (`KERNELS` is missing on the host); None if they need not
    be.
    """
    if not host.seen or (host.gpus and KERNELS in host.packages):
        return None
    return "verl trains on the CPU" if not host.gpus else f"{KERNELS} is not installed where workers run"


def warn_without_megatron(trainer: Trainer, leaves: list[Written], engine: str, notes: Notes) -> None:
    """Adds a warning for each of Megatron's settings, because another strategy or engine trains."""
    trains = "FSDP2" if engine == "verl" else engine
    for name, where, setting in sizes(trainer, leaves):
        # True equals 1 as well: for sequence_parallel it is a request, but for Megatron's default behaviour.
        neutral = setting is True if name == "sequence_parallel" else setting == 1 and setting is not True
        if setting not in (None, False, "", {}) and not neutral:
            notes.warn(f"{show(where)} has no effect: only used by Megatron, and {trains} trains")


def only_fsdp2(name: str, where: FieldPath, setting: Any, notes: Notes) -> bool:
    """Returns True, after adding a warning at `where`, if the argument exists in FSDP2 but not in Megatron."""
    if name not in FSDP2_ONLY_ARGUMENTS or setting in (False, -1, 1):
        return name in FSDP2_ONLY_ARGUMENTS or name in ("forward_prefetch", "reshard_after_forward")
    notes.warn(f"{show(where)} has no effect: only used by FSDP2, and the strategy is Megatron")
    return True


def _fits(name: str, where: FieldPath, setting: Any, notes: Notes) -> bool:
    """True if the value has the right type, not checked by the schema inside verl's tree."""
    if setting is None:
        return False
    if name == "sequence_parallel":
        right = isinstance(setting, bool)
        expected = "true or false"
    else:
        right = isinstance(setting, int) and not isinstance(setting, bool) and setting >= 1
        expected = "a whole number of at least 1"
    if not right:
        notes.wrong(where, f"is {setting!r}", f"write {expected}", WrongValue)
    return right
