"""`Resumption`: the newest whole checkpoint of the surviving history, as the point of resumption (rule 8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from rftd.ops.errors import RftdError
from rftd.storage.files.checkpoints import verify
from rftd.storage.files.own_places import checkpoint_folder
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.folds.run_state import RunState


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint to load, and the reasons against newer ones."""

    checkpoint: CheckpointCommitted | None
    """The checkpoint; None: the base model."""
    reason: str
    """Reason against each newer checkpoint passed over."""


def resume_from(state: RunState, accept: Callable[[CheckpointCommitted], bool] = lambda _: True) -> Resumption:
    """Returns the newest good checkpoint accepted by `accept`. Reads and verifies files: call it off the loop."""
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
    """Yields the committed checkpoints whose step is on the spine with equal weights (rule 3)."""
    for key in sorted(state.checkpoints, reverse=True):
        checkpoint = state.checkpoints[key]
        # The checksum too: a repeated step may have made weights other than an older checkpoint's.
        if state.spine.made(*key, checkpoint.checksum):
            yield checkpoint
