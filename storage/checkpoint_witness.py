"""What a checkpoint's folder remembers of the log: heads of every partition, and the digest of the spine.

    <job_dir>/global_step_N/log.json

It is one of the files that checkpoint.committed names, and it is there before that event: a log that has lost the
event, or was rewritten with all its digests, does not agree with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
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


def write_witness(folder: Path, witness: CheckpointWitness) -> None:
    """Writes it into a folder that is made durable afterwards."""
    (folder / NAME).write_bytes(msgspec.json.format(msgspec.json.encode(witness), indent=1))


def read_witness(folder: Path) -> CheckpointWitness | None:
    """What the folder remembers; None for a checkpoint without it, of an older release, or a damaged one."""
    try:
        return json_decoder(CheckpointWitness).decode((folder / NAME).read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
