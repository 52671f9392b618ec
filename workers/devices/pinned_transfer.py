"""Arrays of the host on the device of an engine, without a wait of either side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def to_device(numbers: Sequence[int] | NDArray[Any], device: torch.device) -> torch.Tensor:
    """The numbers on the device, through pinned memory: torch waits for a copy from any other. On a CPU, no copy.

    The pinned memory is torch's own and is used again only when the device has read it.
    """
    # On a CPU the tensor shares the array's memory: whoever changes one changes the other.
    made = torch.from_numpy(np.asarray(numbers))
    return made if device.type == "cpu" else made.pin_memory().to(device, non_blocking=True)
