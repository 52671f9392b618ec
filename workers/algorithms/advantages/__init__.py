"""Advantages, in reading order: `advantage` (of a group: the seam), `token_advantage` (of each token of a batch: the
other seam), `registry`, one file for each function."""

from rftd.workers.algorithms.advantages.registry import ADVANTAGES, advantages_of

__all__ = ["ADVANTAGES", "advantages_of"]
