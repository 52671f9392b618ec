"""Copies of host arrays to an engine's device, without a wait on either side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def to_device(numbers: Sequence[int] | NDArray[Any], device: torch.device) -> torch.Tensor:
    """Returns the numbers as a tensor on the device. The copy to a GPU goes through pinned memory, so that neither side
    waits for it.

    torch reuses the pinned memory only after the device has read it. On a CPU an array is not copied: the tensor shares
    its memory.
    """
    # On a CPU the tensor shares the array's memory: a change to one changes the other.
    tensor = torch.from_numpy(np.asarray(numbers))
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
