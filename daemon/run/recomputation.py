"""`Recomputation`: the state of a step's terms, recomputed by a replay on request."""

from __future__ import annotations

from typing import Literal

import msgspec

RecomputationState = Literal["queued", "running", "done", "failed"]
"""State of a request for a step's terms."""


class Recomputation(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a recomputation, with a sentence for people."""

    step: int
    """Number of the step whose terms are recomputed."""
    state: RecomputationState
    """`queued` while a run needs the memory; `failed` until the next request."""
    sentence: str
    """The state in words: progress, or the reason and the remedy."""
