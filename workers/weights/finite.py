"""Checks that a tensor of weights is free of NaN and infinities."""

from __future__ import annotations

import torch


def is_finite(tensor: torch.Tensor) -> bool:
    """True if the tensor contains neither NaN nor infinity; True for an empty tensor."""
    if not tensor.numel():
        return True
    # NaN propagates through aminmax, which reads the memory once and writes nothing: far faster than testing each
    # number.
    lowest, highest = torch.aminmax(tensor)
    return bool(torch.isfinite(lowest) and torch.isfinite(highest))
