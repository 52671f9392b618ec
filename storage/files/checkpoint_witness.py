"""`CheckpointWitness`: the log as a checkpoint's folder remembers it, by all partitions' heads and the spine's digest.

    <job_dir>/global_step_N/log.json

It is one of the files that checkpoint.committed names, and it is there before that event: a log that has lost the
event, or was rewritten with all its digests, does not agree with it.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.streams.events.experiment import HeadRef
from rftd.streams.events.step import SpineMark

NAME: Final = "log.json"


class CheckpointWitness(msgspec.Struct, frozen=True, kw_only=True):
    """The log as the trainer had read it when it saved."""

    experiment: UUID
    step: int
    generation: int
    heads: tuple[HeadRef, ...]
    spine: SpineMark | None
    sha256: str = ""
    """The digest of everything else in the file, which `write_witness` fills in."""


def write_witness(folder: Path, witness: CheckpointWitness) -> None:
    """Writes the witness into a folder that the caller makes durable afterwards."""
    said = msgspec.json.decode(msgspec.json.encode(witness))
    text = msgspec.json.encode({**said, "sha256": _digest(said)})
    (folder / NAME).write_bytes(msgspec.json.format(text, indent=1))


def read_witness(folder: Path) -> CheckpointWitness | None:
    """The witness of a folder; None for a folder without one, and for a damaged file.

    A wrong bit in the file must not pass for records that the log has lost: that stops an experiment.
    """
    try:
        text = (folder / NAME).read_bytes()
        witness = json_decoder(CheckpointWitness).decode(text)
        whole = witness.sha256 == _digest(msgspec.json.decode(text))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return witness if whole else None


def _digest(said: dict[str, Any]) -> str:
    """The digest of the file's fields, in their order, however they are laid out."""
    rest = {name: value for name, value in said.items() if name != "sha256"}
    return sha256(msgspec.json.encode(rest)).hexdigest()
