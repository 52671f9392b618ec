"""Cyclic garbage, looked for seldom."""

from __future__ import annotations

import gc


def tune_collector() -> None:
    """Looks for cyclic garbage seldom: folds keep hundreds of thousands of objects alive and make hardly a cycle."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
