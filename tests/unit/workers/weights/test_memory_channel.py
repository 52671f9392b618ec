"""The `memory` channel: its place, its room, its buffers, and who cannot see it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rftd.ops.errors import DiskFullError, WeightsElsewhereError, WorkError
from rftd.storage.files.shared_memory import shared_folder
from rftd.workers.weights import mapped_file
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.memory import MemoryChannel
from rftd.workers.weights.tensor_bytes import TensorBytes


def weights(fill: int, size: int = 3 * mapped_file.CHUNK_BYTES + 7) -> dict[str, TensorBytes]:
    return {"w": TensorBytes("uint8", (size,), memoryview(np.full(size, fill, dtype=np.uint8)))}


def published(channel: MemoryChannel, version: int) -> WeightsRef:
    exported = channel.publish(weights(version), version=version, generation=0)
    return WeightsRef(
        version=version,
        generation=0,
        path=exported.path,
        manifest=exported.manifest,
        checksum=exported.checksum,
        method="memory",
        host=exported.host,
    )


def inode(ref: WeightsRef) -> int:
    return os.stat(ref.path).st_ino


def test_tensors_lie_aligned_in_one_private_file_without_holes(tmp_path: Path) -> None:
    ref = published(MemoryChannel(tmp_path / "m"), 1)
    status = os.stat(ref.path)
    assert status.st_blocks * 512 >= status.st_size
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "m").st_mode) == 0o700
    with MemoryChannel(tmp_path).open(ref) as found:
        assert np.frombuffer(found["w"].data, dtype=np.uint8).ctypes.data % mapped_file.ALIGNMENT_BYTES == 0


def test_a_retired_file_is_the_next_buffer_unless_somebody_reads_it(tmp_path: Path) -> None:
    trainer, explorer = MemoryChannel(tmp_path / "m"), MemoryChannel(tmp_path)
    first, second = published(trainer, 1), published(trainer, 2)
    file = inode(first)
    trainer.retire(first)
    third = published(trainer, 3)
    assert inode(third) == file
    with explorer.open(third) as held:
        trainer.retire(third)
        fourth = published(trainer, 4)
        assert inode(fourth) != file
        assert set(held["w"].data) == {3}
    assert len(list((tmp_path / "m").iterdir())) == 2
    with explorer.open(second) as found:
        assert set(found["w"].data) == {2}


def test_who_changes_what_it_mapped_changes_it_for_itself_alone(tmp_path: Path) -> None:
    ref = published(MemoryChannel(tmp_path / "m"), 1)
    with MemoryChannel(tmp_path).open(ref) as mine:
        mine["w"].data[:3] = b"abc"
        with MemoryChannel(tmp_path).open(ref) as others:
            assert set(others["w"].data) == {1}


def test_what_is_being_written_again_is_refused(tmp_path: Path) -> None:
    trainer = MemoryChannel(tmp_path / "m")
    ref = published(trainer, 1)
    trainer.retire(ref)
    (spare,) = (tmp_path / "m").iterdir()
    spare.rename(ref.path)  # as if a reader had opened it a moment before
    with pytest.raises(WorkError, match="others take their place"), MemoryChannel(tmp_path).open(ref):
        pass


def test_no_room_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = MemoryChannel(tmp_path / "m")

    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(DiskFullError, match="no room for"):
            published(channel, 1)
    assert not list((tmp_path / "m").iterdir())
    monkeypatch.setattr(mapped_file.psutil, "virtual_memory", lambda: type("M", (), {"available": 1000}))
    with pytest.raises(DiskFullError, match="1000 are free"):
        published(channel, 1)
    channel.prepare()
    assert not list((tmp_path / "m").iterdir())


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "m").symlink_to(tmp_path / "real")
    with pytest.raises(WorkError, match="somebody else"):
        published(MemoryChannel(tmp_path / "m"), 1)
    assert not list((tmp_path / "real").iterdir())


def test_another_machine_is_told_so(tmp_path: Path) -> None:
    ref = published(MemoryChannel(tmp_path / "m"), 1)
    Path(ref.path).unlink()
    with pytest.raises(WorkError, match="publishes them again"), MemoryChannel(tmp_path).open(ref):
        pass
    away, reader = msgspec.structs.replace(ref, host="elsewhere.example"), MemoryChannel(tmp_path)
    with pytest.raises(WeightsElsewhereError, match=r"memory of elsewhere\.example"), reader.open(away):
        pass


def test_files_of_another_experiment_are_neither_held_nor_removed(tmp_path: Path) -> None:
    ref = published(MemoryChannel(tmp_path / "one"), 1)
    other = MemoryChannel(tmp_path / "two")
    assert not other.holds(ref)
    other.retire(ref)
    assert MemoryChannel(tmp_path / "one").holds(ref)


def test_the_folder_follows_from_the_jobs(tmp_path: Path) -> None:
    one, two = (shared_folder(str(tmp_path / name), memory=str(tmp_path)) for name in ("a", "b"))
    assert one.parent == two.parent == tmp_path
    assert one != two
    assert shared_folder(str(tmp_path / "a"), "/asked").parent == Path("/asked")
    assert shared_folder(str(tmp_path / "a"), memory=str(tmp_path / "none")) == tmp_path / "a" / "weights"
