"""Random numbers of requests: a pure function of (seed, position), independent of neighbours in the batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
"""All 64 bits."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""Increment of splitmix64: 2^64 divided by the golden ratio."""


def key_of(seed: int) -> int:
    """Returns the 64-bit key of a request's seed, any integer; neighbouring seeds get unrelated keys."""
    x = seed & _MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def uniforms(keys: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Returns numbers in [0, 1) with 32 random bits, one for each (key, position)  # [N]

    32 bits and not 53: a product with a float64 total then never rounds up to the total.
    """
    bits = _mix(keys + (positions + np.uint64(1)) * _GOLDEN)
    return (bits >> np.uint64(32)).astype(np.float64) * 2.0**-32


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mixes the bits of each number, by the finaliser of splitmix64, as in `key_of`."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
