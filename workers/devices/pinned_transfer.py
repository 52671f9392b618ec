"""Arrays of the host on the device of an engine, without a wait on either side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def to_device(numbers: Sequence[int] | NDArray[Any], device: torch.device) -> torch.Tensor:
    """Returns the numbers on the device, through pinned memory: torch waits for a copy from any other. On a CPU, no
    copy.

    The pinned memory is torch's own and is reused only after the device has read it.
    """
    # On a CPU the tensor shares the array's memory: a change to one changes the other.
    tensor = torch.from_numpy(np.asarray(numbers))
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
