"""Whether a tensor of weights holds numbers alone."""

from __future__ import annotations

import torch


def is_finite(tensor: torch.Tensor) -> bool:
    """True if there is neither NaN nor infinity in it."""
    if not tensor.numel():
        return True
    # NaN comes through aminmax, which reads the memory once and writes none: far faster than asking each number.
    lowest, highest = torch.aminmax(tensor)
    return bool(torch.isfinite(lowest) and torch.isfinite(highest))
