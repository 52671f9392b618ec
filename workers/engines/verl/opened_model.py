"""Opens a model by the strategy in the engine's arguments: FSDP2 or Megatron.

Import the module after `platform.choose_platform`: verl decides on devices during its import.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rftd.workers.engines.verl.model import open_fsdp
from rftd.workers.engines.verl.wrapping import Wrapping


def open_model(
    folder: Path,
    wrapping: Wrapping,
    *,
    critic: bool = False,
    offload: bool | None = None,
    before: Callable[[Any], None] | None = None,
) -> Any:
    """Opens the language model of a folder, or a `critic` with its decoder, spread over all ranks; every rank must call
    it.

    `offload` overrides `param_offload`; `before` changes the complete module on the host, before it is spread; both
    apply to FSDP2 only. Raises DataError for a folder without a model, ConfigError for unfit settings.
    """
    if wrapping.arguments.strategy == "megatron":
        # Only here: it needs megatron-core and mbridge.
        from rftd.workers.engines.verl.megatron.model import open_megatron

        return open_megatron(folder, wrapping, critic=critic)
    return open_fsdp(folder, wrapping, critic=critic, offload=offload, before=before)


def frozen_model(folder: Path, wrapping: Wrapping, *, offload: bool) -> Any:
    """Opens the language model of a folder without gradients, spread over all ranks; with `offload`, it stays on the
    host between passes.

    Raises as `open_model`.
    """
    model = open_model(folder, wrapping, offload=offload)
    for parameter in model.parameters.values():
        parameter.requires_grad_(False)
    return model
