"""`Resumption`: the checkpoint from which training resumes, the newest valid one of the present history."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from rftd.ops.errors import RftdError
from rftd.storage.files.checkpoints import verify
from rftd.storage.files.own_places import checkpoint_folder
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.folds.run_state import RunState


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint to load at a start, and why newer ones are not used."""

    checkpoint: CheckpointCommitted | None
    """The checkpoint; None to start from the base model."""
    reason: str
    """Why each newer checkpoint is not used; empty if the newest is."""


def resume_from(state: RunState, accept: Callable[[CheckpointCommitted], bool] = lambda _: True) -> Resumption:
    """Returns the newest valid checkpoint of the present history for which `accept` returns True.

    Reads and verifies files: to be called off the event loop.
    """
    reasons = []
    for checkpoint in filter(accept, _newest_first(state)):
        try:
            # Every byte is read: training from a damaged checkpoint would continue without any error.
            assert state.spine.spec is not None  # a step of the experiment was executed
            verify(checkpoint_folder(state.spine.spec, checkpoint), checkpoint.files)
        except RftdError as error:
            reasons.append(f"step {checkpoint.step}: {error.what}")
        else:
            return Resumption(checkpoint=checkpoint, reason="; ".join(reasons))
    return Resumption(checkpoint=None, reason="; ".join(reasons))


def _newest_first(state: RunState) -> Iterator[CheckpointCommitted]:
    """Yields the committed checkpoints of steps on the spine with equal weights, newest first."""
    for key in sorted(state.checkpoints, reverse=True):
        checkpoint = state.checkpoints[key]
        # The checksum too: a repeated step may have made weights other than an older checkpoint's.
        if state.spine.made(*key, checkpoint.checksum):
            yield checkpoint
