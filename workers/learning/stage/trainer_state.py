"""`TrainerState`: how far a stage has come, as trainer_state.json of a checkpoint keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import DataError

FORMAT: Final = 1
_NAME: Final = "trainer_state.json"


class TrainerState(msgspec.Struct, frozen=True, kw_only=True):
    """The stage and step that weights and optimizer belong to, and adaptive coefficients.

    The schedule is a function of the step and nothing draws random numbers, so there is no state of either.
    """

    format: int = FORMAT
    stage: str
    """The name of the stage; empty before the first."""
    step: int
    """The weight version."""
    stage_step: int
    optimizer: str
    kl_coef: float | None = None
    """The coefficient of the next step's KL loss, where it is adaptive and has changed."""
    kl_penalty_coef: float | None = None
    """The coefficient of the next step's KL penalty, likewise."""
    nonfinite_in_a_row: int = 0
    """Steps up to this one that were skipped because they were not finite."""

    def write(self, actor: Path) -> None:
        """Writes trainer_state.json into a checkpoint's `actor`. Raises OSError."""
        (actor / _NAME).write_bytes(msgspec.json.format(msgspec.json.encode(self)))

    @classmethod
    def read(cls, actor: Path) -> TrainerState:
        """The state in trainer_state.json. Raises DataError if it is missing, damaged or of another format."""
        path = actor / _NAME
        try:
            state = json_decoder(cls).decode(path.read_bytes())
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise unreadable(path, error) from error
        if state.format != FORMAT:
            raise DataError(
                f"the checkpoint has format {state.format}, this program reads {FORMAT}",
                where=str(path),
                fix="use the program that wrote it",
            )
        return state


def unreadable(path: Path, error: Exception) -> DataError:
    """The error of a checkpoint's file that is missing or damaged."""
    return DataError(
        f"the checkpoint cannot be read: {type(error).__name__}: {error}",
        where=str(path),
        fix="resume from an earlier checkpoint",
    )
