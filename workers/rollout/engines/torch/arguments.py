"""`engine_args` of the torch rollout engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rftd.ops.decoding import converted
from rftd.ops.errors import ConfigError
from rftd.workers.devices.compute_device import DeviceName

DEVICE: Final = "explorer.rollout_model.extra_engine_args.device"


class TorchRolloutArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments below `explorer.rollout_model.extra_engine_args`, beside `threads`."""

    device: DeviceName = "auto"
    """`auto`: cuda if there is one and the experiment is not deterministic. Weights, cache and drawing are there."""
    cuda_graphs: bool = True
    """On a GPU: record decode steps once and repeat them, where the model's allow it. On a CPU it changes nothing."""


def parse(arguments: Mapping[str, Any]) -> TorchRolloutArgs:
    """The arguments, checked. Raises ConfigError."""
    try:
        return converted(dict(arguments), TorchRolloutArgs)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"the torch engine does not take {dict(arguments)!r}: {error}",
            field="explorer.rollout_model.extra_engine_args",
            fix=f"use {', '.join((*TorchRolloutArgs.__struct_fields__, 'threads'))}",
        ) from error
