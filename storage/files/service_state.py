"""`ServiceState`: what a checkpoint says of weights and optimizer that lie at a service, as `actor/service.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import DataError

PATH: Final = "actor/service.json"
"""The file's place in a checkpoint's folder."""
_FORMAT: Final = 1


class ServiceState(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a state at a service. The folder holds nothing else of the weights."""

    format: int = _FORMAT
    service: str
    """The engine that knows the service."""
    base_model: str
    path: str
    """The name of weights and optimizer at the service."""
    checksum: str
    """The opaque checksum of the weights."""
    reference: str = ""
    """The name of the weights that the stage compares with; empty: the base model's, or none."""

    def write(self, checkpoint: Path) -> None:
        """Writes the file into a checkpoint's folder, whose `actor` is there. Raises OSError."""
        (checkpoint / PATH).write_bytes(msgspec.json.format(msgspec.json.encode(self)))

    @classmethod
    def read(cls, checkpoint: Path) -> ServiceState:
        """The state that a checkpoint's folder names. Raises DataError if it is missing, damaged or of another
        format."""
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
    """True if the folder's weights lie at a service."""
    return (checkpoint / PATH).is_file()
