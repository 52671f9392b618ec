"""What a checkpoint's folder remembers of the log: read as it was written, or not at all."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import msgspec

from rftd.storage.files.checkpoint_witness import NAME, CheckpointWitness, read_witness, write_witness
from rftd.streams.events.experiment import HeadRef
from rftd.streams.events.step import SpineMark

WITNESS = CheckpointWitness(
    experiment=UUID(int=7),
    step=2,
    generation=0,
    heads=(HeadRef("rftd.experiments", 2, 13, b"chain of spine.."), HeadRef("rftd.tasks", 0, 1, b"chain of tasks..")),
    spine=SpineMark(start=1, end=13, digest=b"digest of spine."),
)


def test_no_wrong_bit_is_taken_for_a_memory(tmp_path: Path) -> None:
    """Many leave text that can be read: another partition, another offset, another chain."""
    write_witness(tmp_path, WITNESS)
    written = read_witness(tmp_path)
    assert written is not None
    assert msgspec.structs.replace(written, sha256="") == WITNESS
    text = (tmp_path / NAME).read_bytes()
    for at in range(len(text)):
        for bit in range(8):
            damaged = bytearray(text)
            damaged[at] ^= 1 << bit
            (tmp_path / NAME).write_bytes(damaged)
            found = read_witness(tmp_path)
            assert found is None or msgspec.structs.replace(found, sha256="") == WITNESS, bytes(damaged)
