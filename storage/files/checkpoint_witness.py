"""`CheckpointWitness`: the log as remembered by a checkpoint's folder: the heads of all partitions and the spine's
digest.

    <job_dir>/global_step_N/log.json

The file is named by `checkpoint.committed`, and exists before the event: a log without the event, or rewritten with all
digests, disagrees with the file.
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
"""Name of the witness in a checkpoint's folder."""


class CheckpointWitness(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the log as read by the trainer when saving the checkpoint."""

    experiment: UUID
    """Id of the experiment."""
    step: int
    """Step of the checkpoint."""
    generation: int
    """Generation of the trainer."""
    heads: tuple[HeadRef, ...]
    """Heads of the log shortly before the checkpoint's files were written."""
    spine: SpineMark | None
    """Digest of the spine up to its head; None if not computed."""
    sha256: str = ""
    """The digest of all other fields, filled in by `write_witness`."""


def write_witness(folder: Path, witness: CheckpointWitness) -> None:
    """Writes the witness into a folder that the caller syncs afterwards."""
    fields = msgspec.json.decode(msgspec.json.encode(witness))
    text = msgspec.json.encode({**fields, "sha256": _digest(fields)})
    (folder / NAME).write_bytes(msgspec.json.format(text, indent=1))


def read_witness(folder: Path) -> CheckpointWitness | None:
    """Returns the witness of a checkpoint's folder; None without a file, and for a damaged file.

    A flipped bit in the file must not look like lost records, because a loss stops the experiment.
    """
    try:
        text = (folder / NAME).read_bytes()
        witness = json_decoder(CheckpointWitness).decode(text)
        whole = witness.sha256 == _digest(msgspec.json.decode(text))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return witness if whole else None


def _digest(fields: dict[str, Any]) -> str:
    """Returns the digest of the file's fields in order, independent of the file's layout."""
    digested = {name: field for name, field in fields.items() if name != "sha256"}
    return sha256(msgspec.json.encode(digested)).hexdigest()
