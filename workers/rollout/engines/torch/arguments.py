"""`extra_engine_args` of the torch rollout engine, and how it is opened; known without torch."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.workers.devices.compute_device import DeviceName, compute_device
from rftd.workers.rollout.engine import RolloutEngine
from rftd.workers.rollout.engines.definition import EngineOpening, RolloutEngineDefinition

_DEVICE: Final = "explorer.rollout_model.extra_engine_args.device"


class TorchRolloutArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments below `explorer.rollout_model.extra_engine_args`, beside `threads`."""

    device: DeviceName = "auto"
    """`auto`: cuda if there is one and the experiment is not deterministic. Weights, cache and drawing are there."""
    cuda_graphs: bool = True
    """Decode steps on a GPU are recorded once and repeated, where the model's allow it. On a CPU it changes nothing."""


async def _open(opening: EngineOpening[TorchRolloutArgs]) -> RolloutEngine:
    from rftd.workers.rollout.engines.torch.engine import TorchRolloutEngine

    arguments = opening.arguments
    return await TorchRolloutEngine.open(
        opening.model.path,
        slots=opening.slots,
        max_model_len=opening.model.max_model_len,
        dtype=opening.rollout.dtype,
        device=compute_device(arguments.device, deterministic=opening.deterministic, field=_DEVICE),
        threads=opening.threads,
        deterministic=opening.deterministic,
        cuda_graphs=arguments.cuda_graphs,
        trust_remote_code=opening.model.trust_remote_code,
        biased=opening.biased,
    )


ENGINE: Final = RolloutEngineDefinition(arguments=TorchRolloutArgs, open=_open)
