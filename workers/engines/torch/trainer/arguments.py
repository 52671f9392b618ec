"""`engine_args` of the torch trainer engine; importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from rftd.ops import limits
from rftd.ops.plugins import parsed
from rftd.workers.devices.compute_device import DeviceName
from rftd.workers.learning.critic_arguments import CriticArgs

DEVICE: Final = "trainer.engine_args.device"
"""Field of the experiment file with the engine's device."""


class TorchTrainerArgs(CriticArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the experiment file below `trainer.engine_args`."""

    device: DeviceName = "auto"
    """`auto`: cuda if there is one and the experiment is not deterministic."""
    prefix_sharing: Literal["auto", "always", "never"] = "auto"
    """The sharing of equal prompts, and of what their responses begin with alike: each is computed once.

    `auto`: for architectures known to take attention masks whole.
    """
    gradient_checkpointing: bool = False
    """True: one state per layer is kept and the rest computed again for the gradient: less memory, a third more
    time."""
    ranks: Annotated[int, msgspec.Meta(ge=0, le=limits.RANKS)] = 0
    """The processes that share the micro-batches of each step, each with the whole model; 0: the trainer process alone.

    They need `device: cpu`, or `cuda` with as many GPUs.
    """
    nodes: Annotated[int, msgspec.Meta(ge=1, le=limits.RANKS)] = 1
    """The nodes of a Ray cluster over which the ranks are spread, as many on each; on GPUs whole nodes are taken."""
    rank_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=limits.CALL_TIMEOUT_S)] = limits.RANK_CALL_TIMEOUT_S
    """The longest that one call of the ranks may take, a step or a checkpoint."""
    lora_publish: Literal["merged", "adapter"] = "merged"
    """`merged`: explorers get whole weights; `adapter`: the adapter alone, which they add to their base. For LoRA
    only."""


OPENED_WITH: Final = ("device", "gradient_checkpointing", "lora_publish", "ranks", "nodes", "rank_timeout_s")
"""Arguments that apply to all stages, because the engine loads its model once."""


def parse(arguments: Mapping[str, Any]) -> TorchTrainerArgs:
    """Returns the parsed arguments. Raises ConfigError."""
    return parsed(arguments, TorchTrainerArgs, taker="the torch engine", field="trainer.engine_args")
