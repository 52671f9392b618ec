"""`TrainerState`: the progress of a stage, stored in trainer_state.json of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import DataError

FORMAT: Final = 1
"""Version of the file's layout."""
_FILE_NAME: Final = "trainer_state.json"
"""Name of the file in a checkpoint's folder `actor`."""


class TrainerState(msgspec.Struct, frozen=True, kw_only=True):
    """Stage and step of a checkpoint's weights and optimizer, with the current adaptive coefficients.

    The learning rate is a function of the step, and training draws no random numbers, so neither has a state.
    """

    format: int = FORMAT
    """Version of the file's layout."""
    stage: str
    """Name of the stage; empty before the first."""
    step: int
    """Weight version of the saved weights: steps completed in the experiment."""
    stage_step: int
    """Steps completed in the stage."""
    optimizer: str
    """Kind of the optimizer, for example `adamw`."""
    kl_coef: float | None = None
    """Coefficient of the next step's KL loss, if adaptive and changed since the beginning; None for the
    specification's.
    """
    kl_penalty_coef: float | None = None
    """Coefficient of the next step's KL penalty, if adaptive and changed since the beginning; None for the
    specification's.
    """
    remembered: dict[str, float] = {}
    """Baseline of each role for the next step, of an advantage function relative to earlier batches."""
    nonfinite_in_a_row: int = 0
    """Number of latest consecutive steps skipped because of a loss or gradient that was not finite."""

    def write(self, actor: Path) -> None:
        """Writes trainer_state.json into a checkpoint's folder `actor`. Raises OSError."""
        (actor / _FILE_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(self)))

    @classmethod
    def read(cls, actor: Path) -> TrainerState:
        """Returns the state in a checkpoint's folder `actor`.

        Raises DataError if trainer_state.json is missing, damaged or of another format.
        """
        path = actor / _FILE_NAME
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
    """Returns the DataError to raise for a missing or damaged file of a checkpoint, with `error` as the reason."""
    return DataError(
        f"the checkpoint cannot be read: {type(error).__name__}: {error}",
        where=str(path),
        fix="resume from an earlier checkpoint",
    )
