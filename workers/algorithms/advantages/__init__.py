"""Advantages, in reading order: `advantage` (the seam), `registry`, one file for each function."""

from rftd.workers.algorithms.advantages.registry import ADVANTAGES, advantages_of

__all__ = ["ADVANTAGES", "advantages_of"]
