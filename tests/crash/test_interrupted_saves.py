"""A save that is struck at any call: the checkpoint before stays loadable, and what is visible is whole (I8)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rftd.ops.errors import NotFoundError
from rftd.storage.files.artifacts import ArtifactStore
from rftd.storage.files.checkpoints import commit_folder, latest, mark_latest, verify
from rftd.streams.events.checkpoint import FileRef

STRIKES = pytest.mark.parametrize("how", ["kill", "full"])


def written(content: bytes, folder: Path) -> None:
    """Two files, one of them deeper."""
    (folder / "actor").mkdir()
    (folder / "actor" / "model.safetensors").write_bytes(content * 5000)
    (folder / "state.json").write_bytes(content)


def committed(folder: Path, content: bytes) -> tuple[FileRef, ...]:
    return commit_folder(folder, lambda temporary: written(content, temporary))


@pytest.mark.slow
@STRIKES
@pytest.mark.parametrize("replaces", [False, True], ids=["new", "replaces an older generation's"])
def test_a_checkpoint_is_whole_or_not_there(tmp_path: Path, how: str, replaces: bool) -> None:
    from synthetic.faults.nth_call import strike_each

    job = tmp_path / "job"
    before, after = job / "global_step_5", job / "global_step_10"
    kept = committed(before, b"five")
    new = committed(tmp_path / "model" / "global_step_10", b"ten")
    older = committed(tmp_path / "older" / "global_step_10", b"old ten")
    mark_latest(job, 5)

    def prepare() -> None:
        for folder in job.iterdir():
            if folder.is_dir() and folder != before:
                shutil.rmtree(folder)
        mark_latest(job, 5)
        if replaces:
            committed(after, b"old ten")

    def save() -> None:
        committed(after, b"ten")
        mark_latest(job, 10)

    def check(number: int) -> None:
        verify(before, kept)
        if after.exists():
            content = (after / "state.json").read_bytes()
            verify(after, new if content == b"ten" else older)
            assert content == b"ten" or replaces
        newest = latest(job)
        assert newest in (5, 10), number
        assert (job / f"global_step_{newest}").is_dir(), number
        if newest == 10:
            verify(after, new)
        save()
        verify(after, new)
        assert {path.name for path in job.iterdir() if path.is_dir()} == {before.name, after.name}, number

    assert strike_each(prepare, save, check, how) > 20


@STRIKES
def test_an_artifact_is_whole_or_not_there(tmp_path: Path, how: str) -> None:
    from synthetic.faults.nth_call import strike_each

    store = ArtifactStore(tmp_path / "store")
    kept = store.put(b"kept")
    data = b"new" * 100_000
    new = ArtifactStore(tmp_path / "model").put(data)

    def check(number: int) -> None:
        assert store.read(kept) == b"kept"
        try:
            assert store.read(new) == data, number
        except NotFoundError:
            assert not store.has(new)
        assert store.put(data) == new
        assert store.read(new) == data

    def put() -> None:
        store.put(data)

    def prepare() -> None:
        shutil.rmtree(store.path_of(new).parent, ignore_errors=True)

    assert strike_each(prepare, put, check, how) > 4


@STRIKES
def test_exported_weights_are_whole_or_not_there(tmp_path: Path, how: str) -> None:
    import torch
    from synthetic.faults.nth_call import strike_each

    from rftd.workers.weights.checkpoint import export, read
    from rftd.workers.weights.torch_bytes import bytes_of

    folder, kept = tmp_path / "weights" / "v2-g1", tmp_path / "weights" / "v1-g1"
    tensors = bytes_of({"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5)})
    export(tensors, kept, version=1, generation=1)

    def save() -> None:
        export(tensors, folder, version=2, generation=1)

    def check(number: int) -> None:
        read(kept)
        if folder.exists():
            assert read(folder)[0].version == 2, number
        save()
        assert read(folder)[0].version == 2

    def prepare() -> None:
        for each in folder.parent.iterdir():
            if each != kept:
                shutil.rmtree(each)

    assert strike_each(prepare, save, check, how) > 5


@STRIKES
def test_mapped_weights_are_whole_or_not_there(tmp_path: Path, how: str) -> None:
    import numpy as np
    from synthetic.faults.nth_call import strike_each

    from rftd.ops.errors import DiskFullError, WorkError
    from rftd.workers.weights.channel import Exported, WeightsRef
    from rftd.workers.weights.memory import MemoryChannel
    from rftd.workers.weights.tensor_bytes import TensorBytes

    data = memoryview(np.arange(5000, dtype=np.uint8))
    weights = {"a": TensorBytes("uint8", (5000,), data), "b": TensorBytes("uint8", (3,), memoryview(b"abc"))}
    kept = MemoryChannel(tmp_path / "m").publish(weights, version=1, generation=1)

    def opened(exported: Exported, version: int) -> None:
        ref = WeightsRef(
            version=version,
            generation=1,
            path=exported.path,
            manifest=exported.manifest,
            checksum=exported.checksum,
            method="memory",
        )
        with MemoryChannel(tmp_path / "m").open(ref) as found:
            assert bytes(found["a"].data) == bytes(data)

    def save() -> None:
        try:
            MemoryChannel(tmp_path / "m").publish(weights, version=2, generation=1)
        except DiskFullError as error:
            raise OSError(28, error.what) from error

    def check(number: int) -> None:
        opened(kept, 1)
        try:
            opened(MemoryChannel(tmp_path / "m").publish(weights, version=2, generation=1), 2)
        except WorkError as error:
            raise AssertionError(number) from error

    def prepare() -> None:
        for each in (tmp_path / "m").iterdir():
            if str(each) != kept.path:
                each.unlink()

    assert strike_each(prepare, save, check, how) > 2
