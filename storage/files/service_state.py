"""`ServiceState`: the names of weights and optimizer at a remote service, stored as `actor/service.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import DataError

PATH: Final = "actor/service.json"
"""The file's path within a checkpoint's folder."""
_FORMAT: Final = 1
"""Format of the file."""


class ServiceState(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a training state at a remote service. The folder holds no other part of the weights."""

    format: int = _FORMAT
    """Format of the file; another one is refused."""
    service: str
    """Name of the engine for this service."""
    base_model: str
    """Name of the base model at the service."""
    path: str
    """The name of weights and optimizer at the service."""
    checksum: str
    """The opaque checksum of the weights."""
    reference: str = ""
    """The name of the stage's reference weights; empty: the base model's, or none."""

    def write(self, checkpoint: Path) -> None:
        """Writes the file into a checkpoint's folder, which already has `actor`. Raises OSError."""
        (checkpoint / PATH).write_bytes(msgspec.json.format(msgspec.json.encode(self)))

    @classmethod
    def read(cls, checkpoint: Path) -> ServiceState:
        """Returns the state named by a checkpoint's folder. Raises DataError for a missing or damaged file or another
        format.
        """
        path = checkpoint / PATH
        try:
            state = json_decoder(cls).decode(path.read_bytes())
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DataError(
                f"the checkpoint names no state at a service: {type(error).__name__}: {error}",
                where=str(path),
                fix="resume from another checkpoint",
            ) from error
        if state.format != _FORMAT:
            raise DataError(
                f"the checkpoint has format {state.format}, this program reads {_FORMAT}",
                where=str(path),
                fix="use the program that wrote it",
            )
        return state


def names_service(checkpoint: Path) -> bool:
    """True if the weights of a checkpoint lie at a remote service."""
    return (checkpoint / PATH).is_file()
