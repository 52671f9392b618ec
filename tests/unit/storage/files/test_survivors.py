"""Who remembers a log that was shortened: every file is heard, and a damaged one silences nobody else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rftd.ops.errors import CodecError
from rftd.storage.files.snapshots import FOLDER
from rftd.storage.files.survivors import Job, LossesFile, leave_word, of_jobs, of_log_folder, of_registry
from rftd.streams.events.experiment import HeadRef, LostHead
from rftd.streams.log.chain import Heads, Mark
from rftd.streams.log.lost_records import Loss
from rftd.streams.log.topics import Partition
from rftd.streams.sqlite.heads_file import FILE_NAME, HeadsFile, read_heads

A, B = Partition("rftd.experiments", 0), Partition("rftd.tasks", 3)
CHAIN = b"c" * 16


def remember(path: Path, heads: Heads) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = HeadsFile(path)
    file.write(heads)
    file.close()


def test_nobody_remembers_what_there_never_was(tmp_path: Path) -> None:
    assert of_log_folder(tmp_path) == []
    assert of_jobs([]) == []
    assert of_jobs([Job("gone", tmp_path / "gone")]) == []
    assert of_registry(tmp_path / "gone") == []


def test_the_log_folder_speaks_in_the_name_of_its_file(tmp_path: Path) -> None:
    remember(tmp_path / FILE_NAME, {A: Mark(7, CHAIN)})
    [heard] = of_log_folder(tmp_path)
    assert heard.by == str(tmp_path / FILE_NAME)
    assert heard.heads == {A: Mark(7, CHAIN)}


def test_every_file_of_every_job_is_heard_with_the_jobs_name(tmp_path: Path) -> None:
    for job in ("one", "two"):
        folder = tmp_path / job / FOLDER
        remember(folder / FILE_NAME, {A: Mark(7, CHAIN)})
        remember(folder / f"{FILE_NAME}.explorer-0", {B: Mark(9, CHAIN)})
    heard = of_jobs([Job("one", tmp_path / "one"), Job("two", tmp_path / "two")])
    assert [witness.heads for witness in heard] == [{A: Mark(7, CHAIN)}, {B: Mark(9, CHAIN)}] * 2
    assert [witness.by.rpartition(" of ")[2] for witness in heard] == ["one", "one", "two", "two"]
    assert heard[1].by.startswith(str(tmp_path / "one" / FOLDER / f"{FILE_NAME}.explorer-0"))


def test_a_damaged_file_keeps_nobody_else_from_speaking(tmp_path: Path) -> None:
    folder = tmp_path / "job" / FOLDER
    remember(folder / FILE_NAME, {A: Mark(7, CHAIN)})
    (folder / f"{FILE_NAME}.explorer-0").write_bytes(b"\xff" * 100)
    (folder / f"{FILE_NAME}.explorer-1").mkdir()
    (folder / "3.fold").write_bytes(b"garbage")
    (folder / "4.fold.aside").write_bytes(b"")
    (folder / "5.fold").mkdir()
    (folder / "note.txt").write_text("hello")
    heard = [witness for witness in of_jobs([Job("job", tmp_path / "job")]) if witness.heads]
    assert [witness.heads for witness in heard] == [{A: Mark(7, CHAIN)}]


def test_a_worker_that_met_another_log_leaves_word_of_the_records_that_it_read(tmp_path: Path) -> None:
    marks = [HeadRef(*A, 7, CHAIN), HeadRef(*B, 9, b"")]
    leave_word(str(tmp_path / "job"), "trainer-0", marks)
    path = tmp_path / "job" / FOLDER / f"{FILE_NAME}.trainer-0"
    assert read_heads(path) == {A: Mark(7, CHAIN)}, "an offset alone is no memory of a record"
    leave_word(str(tmp_path / "job"), "trainer-0", [HeadRef(*A, 8, CHAIN)])
    assert read_heads(path) == {A: Mark(8, CHAIN)}
    [heard] = of_jobs([Job("job", tmp_path / "job")])
    assert heard.heads == {A: Mark(8, CHAIN)}


LOSS = Loss(LostHead(*A, 7, CHAIN, "the tables' positions", 5), experiments=())


def test_losses_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = LossesFile(tmp_path / "data" / "losses.json")
    assert file.read() == []
    file.write([LOSS])
    assert file.read() == [LOSS]
    file.write([])
    assert file.read() == []
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["losses.json"]


@pytest.mark.parametrize("damage", [b"", b"{", b"{}", b"[1]", b"\xff\xfe", b'[{"head": []}]', b"null"])
def test_a_damaged_list_of_losses_is_for_a_person_to_look_at(tmp_path: Path, damage: bytes) -> None:
    """Were it written over, the experiments that it stopped would go on."""
    file = LossesFile(tmp_path / "losses.json")
    file.write([LOSS])
    (tmp_path / "losses.json").write_bytes(damage)
    with pytest.raises(CodecError, match="list of losses cannot be read") as raised:
        file.read()
    assert raised.value.where == str(tmp_path / "losses.json")
    assert raised.value.fix is not None
    assert (tmp_path / "losses.json").read_bytes() == damage


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "rftd.experiments/0@6 was acknowledged and is gone: the log ends before 5"),
        ({"end": 7}, "rftd.experiments/0@6 is not the record that was acknowledged"),
        ({"end": 90}, "rftd.experiments/0@6 is not the record that was acknowledged"),
        ({"end": 6}, "rftd.experiments/0@6 was acknowledged and is gone: the log ends before 6"),
        ({"chain": b""}, "rftd.experiments/0@6 was deleted, and more before it"),
    ],
)
def test_a_loss_says_what_is_gone_and_who_remembers_it(changes: dict[str, object], says: str) -> None:
    loss = Loss(msgspec.structs.replace(LOSS.head, **changes))
    assert loss.what.startswith(says)
    assert "the tables' positions" in loss.what
    assert loss.partition == A
    assert loss.mark == Mark(7, loss.head.chain)
