"""Checkpoint folders: complete when visible, damage named."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from rftd.ops import faults
from rftd.ops.errors import DataError, FencedError
from rftd.storage.files import checkpoints
from rftd.storage.files.checkpoints import (
    LATEST_CHECKPOINT,
    LATEST_WEIGHTS,
    Former,
    commit_folder,
    files_of,
    latest,
    mark_latest,
    mend_markers,
    misses_its_folder,
    place_folder,
    place_markers,
    stage_folder,
    stage_markers,
    verify,
)
from rftd.storage.files.workplace import Workplace


def write(folder: Path) -> None:
    (folder / "actor" / "huggingface").mkdir(parents=True)
    (folder / "actor" / "model.safetensors").write_bytes(b"weights")
    (folder / "actor" / "huggingface" / "config.json").write_bytes(b"{}")


def test_a_committed_folder_is_listed_and_verified(tmp_path: Path) -> None:
    folder = tmp_path / "job" / "global_step_3"
    files = commit_folder(folder, write)
    assert [(file.path, file.size_bytes) for file in files] == [
        ("actor/huggingface/config.json", 2),
        ("actor/model.safetensors", 7),
    ]
    verify(folder, files)
    assert files_of(folder) == files
    assert [path.name for path in folder.parent.iterdir()] == ["global_step_3"]


def reference_and_weights(folder: Path, weights: bytes) -> None:
    (folder / "reference.safetensors").write_bytes(b"r" * 8192)
    (folder / "config.json").write_bytes(b"c" * 8192)
    (folder / "model.safetensors").write_bytes(weights * 8192)


def saved_after(folder: Path, weights: bytes, former: Former | None) -> Former:
    staged = stage_folder(folder, lambda each: reference_and_weights(each, weights), former=former)
    place_folder(staged, folder)
    staged.clear()
    verify(folder, staged.files)
    return Former(folder, staged.files)


def test_tensors_that_a_checkpoint_shares_with_the_last_are_one_file(tmp_path: Path) -> None:
    """It stays until the last of them is removed; what is damaged since, other bytes and settings are not shared."""
    first = saved_after(tmp_path / "global_step_1", b"1", None)
    second = saved_after(tmp_path / "global_step_2", b"2", first)
    assert (second.folder / "reference.safetensors").samefile(first.folder / "reference.safetensors")
    assert not (second.folder / "config.json").samefile(first.folder / "config.json")
    assert (second.folder / "model.safetensors").read_bytes() == b"2" * 8192
    again = saved_after(second.folder, b"3", second)  # a later generation saves the step once more
    assert (again.folder / "reference.safetensors").samefile(first.folder / "reference.safetensors")
    shutil.rmtree(first.folder)
    verify(again.folder, again.files)
    (again.folder / "reference.safetensors").write_bytes(b"R" * 8192)
    third = saved_after(tmp_path / "global_step_3", b"3", again)
    assert (third.folder / "reference.safetensors").read_bytes() == b"r" * 8192
    assert sorted(path.name for path in third.folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "reference.safetensors",
    ]
    gone = saved_after(tmp_path / "global_step_4", b"4", Former(first.folder, first.files))
    assert (gone.folder / "reference.safetensors").stat().st_nlink == 1


def test_where_a_file_can_have_one_name_only_it_is_kept_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = saved_after(tmp_path / "global_step_1", b"1", None)

    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", refused)
    second = saved_after(tmp_path / "global_step_2", b"2", first)
    assert not (second.folder / "reference.safetensors").samefile(first.folder / "reference.safetensors")


def test_a_failed_write_leaves_the_older_folder(tmp_path: Path) -> None:
    folder = tmp_path / "global_step_3"
    files = commit_folder(folder, write)

    def fail(temporary: Path) -> None:
        write(temporary)
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        commit_folder(folder, fail)
    verify(folder, files)
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_3"]


def test_a_folder_of_an_earlier_generation_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "global_step_3"
    commit_folder(folder, lambda temporary: (temporary / "old").touch())
    (tmp_path / ".global_step_3.tmp").mkdir()
    files = commit_folder(folder, write)
    verify(folder, files)
    assert not (folder / "old").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_3"]


@pytest.mark.parametrize("at_once", [True, False], ids=["exchanged", "renamed twice"])
@pytest.mark.parametrize("point", ["checkpoint.before_rename", "checkpoint.before_exchange"])
def test_who_was_replaced_and_wakes_does_not_touch_what_its_successor_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, at_once: bool
) -> None:
    if not at_once:
        monkeypatch.setattr(checkpoints, "exchange", lambda _first, _second: False)
    folder = tmp_path / "global_step_3"
    commit_folder(folder, lambda temporary: (temporary / "first").touch())
    old, new = Workplace(tmp_path, 1), Workplace(tmp_path, 2)
    old.open()
    zombie = stage_folder(folder, lambda temporary: (temporary / "zombie").touch(), within=old.path)
    stage_markers(tmp_path, 3, within=old.path)
    files = []

    def meanwhile(name: str) -> None:
        if name == point and not files:
            files.append(())
            new.take_over({})
            staged = stage_folder(folder, write, within=new.path)
            place_folder(staged, folder)
            new.close()
            files[0] = staged.files

    monkeypatch.setattr(faults, "point", meanwhile)
    with pytest.raises(FencedError):
        place_folder(zombie, folder)
    with pytest.raises(FencedError):
        place_markers(tmp_path, within=old.path)
    verify(folder, files[0])
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_3"]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.write_bytes(b"weight"), "6 bytes instead of 7"),
        (lambda path: path.write_bytes(b"Weights"), "other bytes"),
    ],
)
def test_the_damaged_file_is_named(tmp_path: Path, damage: object, says: str) -> None:
    assert callable(damage)
    folder = tmp_path / "global_step_3"
    files = commit_folder(folder, write)
    damage(folder / "actor" / "model.safetensors")
    with pytest.raises(DataError, match=says) as raised:
        verify(folder, files)
    assert raised.value.where
    assert raised.value.where.endswith("actor/model.safetensors")


def test_a_path_out_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    files = commit_folder(tmp_path / "global_step_3", write)
    (tmp_path / "x").write_bytes(b"weights")
    outside = type(files[0])("../x", 7, files[1].sha256)
    with pytest.raises(DataError, match="outside"):
        verify(tmp_path / "global_step_3", [outside])


@pytest.mark.parametrize("path", ["..", "../global_step_3x/y", "/etc/passwd", "a\0b", "x" * 300, "\ud800"])
def test_a_name_that_no_file_of_a_checkpoint_can_have_is_refused(tmp_path: Path, path: str) -> None:
    (first, *_) = commit_folder(tmp_path / "global_step_3", write)
    with pytest.raises(DataError, match=r"outside of the checkpoint|not a file name") as raised:
        verify(tmp_path / "global_step_3", [first, type(first)(path, first.size_bytes, first.sha256)])
    assert raised.value.where == str(tmp_path / "global_step_3")


@pytest.mark.parametrize("path", ["", ".", "actor", "actor/huggingface"])
def test_a_folder_is_no_file_of_a_checkpoint(tmp_path: Path, path: str) -> None:
    (first, *_) = commit_folder(tmp_path / "global_step_3", write)
    with pytest.raises(DataError, match="is missing"):
        verify(tmp_path / "global_step_3", [type(first)(path, first.size_bytes, first.sha256)])


def test_symbolic_links_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="symbolic link"):
        commit_folder(tmp_path / "global_step_3", lambda temporary: (temporary / "a").symlink_to("/etc/hostname"))


def test_markers(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    mark_latest(tmp_path, 3)
    mark_latest(tmp_path, 12)
    assert latest(tmp_path) == 12
    assert (tmp_path / "latest_state_dict_iteration.txt").read_text() == "12"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", [LATEST_CHECKPOINT, LATEST_WEIGHTS])
@pytest.mark.parametrize(
    "damaged", [b"", b"twelve", b"-3", b"3 4", b"3\x00", b"\xff\xfe12", "\u0663".encode(), b"9" * 5000, bytes(4096)]
)
def test_a_damaged_marker_names_no_checkpoint_and_stays_for_a_person_to_see(
    tmp_path: Path, name: str, damaged: bytes
) -> None:
    commit_folder(tmp_path / "global_step_3", write)
    mark_latest(tmp_path, 3)
    assert not misses_its_folder(tmp_path)
    (tmp_path / name).write_bytes(damaged)
    assert misses_its_folder(tmp_path)
    mend_markers(tmp_path, [])
    assert (tmp_path / name).read_bytes() == damaged
    if name == LATEST_CHECKPOINT:
        with pytest.raises(DataError, match="is no step") as raised:
            latest(tmp_path)
        assert raised.value.where == str(tmp_path / name)
    mark_latest(tmp_path, 3)
    assert not misses_its_folder(tmp_path)


def test_a_marker_that_a_person_wrote_may_end_with_a_line_break(tmp_path: Path) -> None:
    (tmp_path / LATEST_CHECKPOINT).write_text("7\n")
    assert latest(tmp_path) == 7
    assert misses_its_folder(tmp_path)
    (tmp_path / "global_step_7").mkdir()
    assert not misses_its_folder(tmp_path)


@pytest.mark.parametrize("cut_off", [False, True])
def test_markers_that_name_a_folder_which_is_gone_name_the_newest_that_stays(tmp_path: Path, cut_off: bool) -> None:
    kept = [str(tmp_path / f"global_step_{step}") for step in (9, 10)]
    for path in kept:
        commit_folder(Path(path), write)
    mark_latest(tmp_path, 10)
    mend_markers(tmp_path, kept[:1])
    assert latest(tmp_path) == 10, "it is there"
    mark_latest(tmp_path, 12)
    if cut_off:  # between the two markers
        (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    assert misses_its_folder(tmp_path)
    mend_markers(tmp_path, [*kept, str(tmp_path / "global_step_11"), str(tmp_path / "other" / "global_step_13")])
    assert (latest(tmp_path), (tmp_path / "latest_state_dict_iteration.txt").read_text()) == (10, "10")
    mark_latest(tmp_path, 12)
    mend_markers(tmp_path, [*kept, str(tmp_path / "global_step_12")])
    assert latest(tmp_path) == 12, "it was committed, and somebody may bring it back"
    mend_markers(tmp_path, [])
    assert latest(tmp_path) is None, "nothing was saved that stays"
    assert not list(tmp_path.glob("latest_*")), "nothing was saved that stays"
