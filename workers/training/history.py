"""`Resumption`: the newest checkpoint that is whole and belongs to the history, from which it goes on (rule 8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from rftd.ops.errors import RftdError
from rftd.storage.files.checkpoints import verify
from rftd.storage.files.own_places import checkpoint_folder
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.folds.run_state import RunState


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint to load, and why no newer one."""

    checkpoint: CheckpointCommitted | None
    """The checkpoint; None: the base model."""
    reason: str
    """The reason for each newer checkpoint that was passed over."""


def resume_from(state: RunState, accept: Callable[[CheckpointCommitted], bool] = lambda _: True) -> Resumption:
    """The newest good checkpoint among those that `accept` takes. Reads and verifies files: call it off the loop."""
    reasons = []
    for checkpoint in filter(accept, _newest_first(state)):
        try:
            # Every byte is read: a checkpoint that is loaded damaged would train on without a word.
            assert state.spine.spec is not None  # a step of its was executed
            verify(checkpoint_folder(state.spine.spec, checkpoint), checkpoint.files)
        except RftdError as error:
            reasons.append(f"step {checkpoint.step}: {error.what}")
        else:
            return Resumption(checkpoint=checkpoint, reason="; ".join(reasons))
    return Resumption(checkpoint=None, reason="; ".join(reasons))


def _newest_first(state: RunState) -> Iterator[CheckpointCommitted]:
    """The committed checkpoints whose step is on the spine with the same weights (rule 3)."""
    for key in sorted(state.checkpoints, reverse=True):
        checkpoint = state.checkpoints[key]
        # The checksum too: a step that was executed again may have made other weights than those of an older
        # checkpoint.
        if state.spine.made(*key, checkpoint.checksum):
            yield checkpoint
