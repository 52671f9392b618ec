"""`check_shared_devices`: refuses engines that together need more memory of a device than the device has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from rftd.ops import limits
from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import RolloutSpec, StageSpec
from rftd.workers.devices.device_memory import EngineMemory, shown, terms_of
from rftd.workers.devices.host import Device, Host
from rftd.workers.generation.auxiliary.auxiliary_stage import auxiliary_stage
from rftd.workers.generation.engine_registry import memory_of

_ENGINE_NUM: Final = "explorer.rollout_model.engine_num"
"""Field with the number of explorers."""
_SMALLER: Final = "or give them a smaller model, cache or share of the memory"
"""End of every fix."""


class _Share(NamedTuple):
    """The device memory of one engine of an explorer, with the engine's name, field and fix for messages."""

    words: str
    """The engine and its memory, in words."""
    memory: EngineMemory
    """Memory of the engine."""
    field: str
    """Field of the experiment file to change where the engines need too much memory."""
    fix: str
    """Advice on the change of the field named by `field`."""


def check_shared_devices(stage: StageSpec, host: Host, *, deterministic: bool = False) -> None:
    """Raises ConfigError, with the sum, if engines sharing a device need more than all of its memory.

    The sum is a lower bound. An engine too large alone is refused by its own checks instead.
    """
    shares = list(_shares(stage, host, deterministic))
    for device in {share.memory.device.kind: share.memory.device for share in shares}.values():
        device_shares = [share for share in shares if share.memory.device.kind == device.kind]
        if all(share.memory.size_bytes <= device.memory_bytes for share in device_shares):
            _check_total(device_shares, device, explorers_on(device, stage.rollout, host))


def _shares(stage: StageSpec, host: Host, deterministic: bool) -> Iterator[_Share]:
    """Yields the known memory needs of one explorer's engines."""
    memory = memory_of(stage, host, deterministic=deterministic)
    if memory is not None:
        yield _Share(terms_of(memory.needs), memory, "", "")
    if stage.evals and stage.rollout.eval_engine == "own":
        memory = memory_of(stage, host, deterministic=deterministic, slots=limits.EVAL_ROWS_IN_PROGRESS)
        if memory is not None:
            words = f"evaluation's own engine {shown(memory.size_bytes)}"
            yield _Share(words, memory, "explorer.eval_engine", "write shared")
    for number, auxiliary in enumerate(stage.auxiliary):
        if auxiliary.served or auxiliary.needs.devices:  # on separate devices
            continue
        memory = memory_of(auxiliary_stage(auxiliary, stage), host, deterministic=deterministic)
        if memory is not None:
            memory = memory._replace(needs=memory.needs * auxiliary.engines)
            counted = f"{auxiliary.engines} engines of " if auxiliary.engines > 1 else ""
            words = f"{counted}auxiliary model {auxiliary.name} {shown(memory.size_bytes)}"
            field = f"explorer.auxiliary_models[{number}].engine_type"
            yield _Share(words, memory, field, "serve it elsewhere, and write external")


def explorers_on(device: Device, rollout: RolloutSpec, host: Host) -> int:
    """Returns the number of explorers with an engine on one device."""
    if device.kind == "cuda" and rollout.needs.devices:
        return -(-rollout.explorers * rollout.needs.devices // len(host.gpus))
    return rollout.explorers


def _check_total(shares: list[_Share], device: Device, explorers: int) -> None:
    """Raises ConfigError if the engines of all explorers on the device need more than the device's memory."""
    explorer_bytes = sum(share.memory.size_bytes for share in shares)
    if explorers * explorer_bytes <= device.memory_bytes:
        return
    terms = " + ".join(share.words for share in shares)
    excess = f"{shown(explorers * explorer_bytes)} > {shown(device.memory_bytes)} of {device.name}"
    possible = device.memory_bytes // explorer_bytes
    if possible:
        problem = f"{explorers} explorers x ({terms}) = {excess}"
        raise ConfigError(problem, field=_ENGINE_NUM, fix=f"lower it to {possible}, {_SMALLER}")
    last = shares[-1]
    problem = f"{terms} = {excess}" if explorers == 1 else f"{explorers} explorers x ({terms}) = {excess}"
    raise ConfigError(problem, field=last.field, fix=f"{last.fix}, {_SMALLER}")
