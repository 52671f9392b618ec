"""Rows of every format, as the library `datasets` writes them: read alike, in any order, and refused by name."""

from __future__ import annotations

import asyncio
import json
import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import CapturingLogger
from synthetic.worlds.desk import stage_of
from synthetic.worlds.row_files import WRITERS, write_arrow

from rftd.ops.errors import DataError, NotInstalledError
from rftd.ops.logs import Logger
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import ExperimentSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.files import taskset_files
from rftd.workers.datasets.table_copies import experiment_copies
from rftd.workers.datasets.taskset import OpenTasksets, Taskset

ROWS = [{"question": f'What is {n}, "as" text?\nSay it.', "answer": f"0{n}", "level": n} for n in range(2500)]


def spec(path: Path, **fields: Any) -> TasksetSpec:
    form = Format(prompt_key="question", response_key="answer")
    return TasksetSpec(name="t", path=str(path), **{"format": form, **fields})


@pytest.fixture
def log() -> Logger:
    return CapturingLogger()


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("suffix", sorted(WRITERS))
def test_every_format_gives_the_same_tasks_in_any_order(tmp_path: Path, log: Logger, suffix: str, copied: bool) -> None:
    path = tmp_path / f"train.{suffix}"
    WRITERS[suffix](datasets.Dataset.from_list(ROWS), path)
    copies = experiment_copies(str(tmp_path / "job"), log) if copied else None
    with Taskset.open(spec(path), copies) as taskset, Taskset.open(spec(path, limit_rows=3)) as part:
        assert len(taskset) == len(ROWS)
        assert len(part) == 3
        assert part.digest == taskset.digest == taskset.present_digest()
        for row in (0, 2499, 1000, 999, 5):
            task = taskset.task(row)
            assert (task.prompt, task.truth) == (ROWS[row]["question"], ROWS[row]["answer"])


def test_what_save_to_disk_writes_is_read_by_split(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list(ROWS)
    both = datasets.DatasetDict({"train": rows, "test": rows.select(range(7))})
    both.save_to_disk(tmp_path / "both", num_shards={"train": 2, "test": 1})
    rows.select(range(5)).save_to_disk(tmp_path / "one")
    (tmp_path / "one" / "cache-0123456789abcdef.arrow").write_bytes(b"of a map")
    with Taskset.open(spec(tmp_path / "both")) as train, Taskset.open(spec(tmp_path / "both", split="test")) as test:
        assert (len(train), len(test)) == (2500, 7)
        assert [train.task(row).truth for row in (0, 1249, 1250, 2499)] == ["00", "01249", "01250", "02499"]
    with Taskset.open(spec(tmp_path / "one")) as one:
        assert [row["level"] for row in one.rows()] == [0, 1, 2, 3, 4]


def test_the_card_of_a_dataset_says_which_files_its_subsets_are(tmp_path: Path) -> None:
    for name in ("odd/a.parquet", "odd/b.parquet", "even/a.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        datasets.Dataset.from_list(ROWS[:2]).to_parquet(tmp_path / name)
    card = """---
configs:
- config_name: first
  data_files:
  - {split: train, path: odd/a.parquet}
  - {split: test, path: ["odd/b*", "even/*"]}
- config_name: second
  data_files: odd/*.parquet
---
# Rows
"""
    (tmp_path / "README.md").write_text(card)
    assert taskset_files(spec(tmp_path, subset="first")) == (tmp_path / "odd/a.parquet",)
    assert taskset_files(spec(tmp_path, subset="first", split="test")) == (
        tmp_path / "odd/b.parquet",
        tmp_path / "even/a.parquet",
    )
    assert len(taskset_files(spec(tmp_path, subset="second"))) == 2
    with pytest.raises(DataError, match="several subsets: first, second"):
        taskset_files(spec(tmp_path))
    for outside in ("../secret.parquet", "/etc/*.csv", "https://example.org/a.csv"):
        (tmp_path / "README.md").write_text(f"---\nconfigs: [{{config_name: x, data_files: '{outside}'}}]\n---\n")
        with pytest.raises(DataError, match="not in this folder"):
            taskset_files(spec(tmp_path))


def test_a_pattern_of_files_is_read_in_order_of_their_names(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        datasets.Dataset.from_list([ROWS[number]]).to_parquet(tmp_path / f"part{number}.parquet")
    (tmp_path / "notes.txt").write_text("no rows")
    with Taskset.open(spec(tmp_path / "part*")) as taskset:
        assert [row["level"] for row in taskset.rows()] == [0, 1, 2]
    with pytest.raises(DataError, match=r"no file of .* fits the pattern"):
        Taskset.open(spec(tmp_path / "other*.parquet"))
    with pytest.raises(DataError, match="must not lead upwards"):
        Taskset.open(spec(tmp_path / "part*" / ".." / "x.parquet"))


def test_several_paths_are_read_one_after_another(tmp_path: Path, log: Logger) -> None:
    for number in range(4):
        datasets.Dataset.from_list([ROWS[number]]).to_parquet(tmp_path / f"part{number}.parquet")
    (tmp_path / "last.jsonl").write_text(json.dumps(ROWS[9]) + "\n")
    paths = [str(tmp_path / name) for name in ("part3.parquet", "part[01]*", "last.jsonl")]
    several = spec(tmp_path / "part2.parquet", more_paths=tuple(paths))
    copies = experiment_copies(str(tmp_path / "job"), log)
    with Taskset.open(several) as taskset, Taskset.open(several, copies) as copied:
        assert [row["level"] for row in taskset.rows()] == [2, 3, 0, 1, 9]
        assert [copied.row(row)["level"] for row in (4, 1, 0)] == [9, 3, 2]
        assert taskset.digest == copied.digest == taskset.present_digest()
        before = taskset.digest
    (tmp_path / "last.jsonl").write_text(json.dumps(ROWS[8]) + "\n")
    with Taskset.open(several, copies) as changed:
        assert changed.digest != before, "the text of a list counts beside its tables"
    with pytest.raises(DataError, match=r"two of its paths name .*part1\.parquet"):
        Taskset.open(spec(tmp_path / "part1.parquet", more_paths=(str(tmp_path / "part*"),)))
    with pytest.raises(DataError, match=r"no file or folder .*gone"):
        Taskset.open(spec(tmp_path / "part1.parquet", more_paths=(str(tmp_path / "gone"),)))


def mapped_bytes() -> int:
    """The pages of files that this process has mapped."""
    return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")


def test_rows_in_any_order_do_not_keep_the_whole_file_in_memory(tmp_path: Path, log: Logger) -> None:
    text = "x" * 250
    table = pa.table({"question": [f"{number} {text}" for number in range(400_000)], "answer": ["1"] * 400_000})
    pq.write_table(table, tmp_path / "rows.parquet")
    with Taskset.open(spec(tmp_path / "rows.parquet"), experiment_copies(str(tmp_path / "job"), log)) as taskset:
        before_bytes = mapped_bytes()
        for index in random.Random(1).sample(range(len(taskset)), 4000):
            assert taskset.row(index)["question"].startswith(f"{index} ")
        assert mapped_bytes() - before_bytes < 40 * 2**20, "the copy has 100 MB"


def test_values_that_json_lacks_become_ones_that_it_has(tmp_path: Path) -> None:
    table = pa.table(
        {
            "question": ["q", "r"],
            "answer": pa.array([float("nan"), 1.5]),
            "when": pa.array([datetime(2026, 1, 2, tzinfo=UTC)] * 2, pa.timestamp("us", "UTC")),
            "image": pa.array([{"bytes": b"\x89PNG"}, {"bytes": b""}]),
            "message": [
                [{"role": "user", "content": "hi", "name": None}],
                [{"role": "user", "content": "a", "name": "b"}],
            ],
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    with Taskset.open(spec(tmp_path / "rows.parquet")) as taskset:
        assert taskset.row(0) == {
            "question": "q",
            "answer": None,
            "when": "2026-01-02T00:00:00+00:00",
            "message": [{"role": "user", "content": "hi"}],
        }
        assert taskset.task(1).truth == "1.5"
        with pytest.raises(DataError, match=r"(?s)null under 'answer'.*rows\.parquet row 0"):
            taskset.task(0)


def test_an_arrow_stream_is_read_like_a_file(tmp_path: Path) -> None:
    write_arrow(tmp_path / "rows.arrow", pa.Table.from_pylist(ROWS), pa.ipc.new_stream)
    with Taskset.open(spec(tmp_path / "rows.arrow")) as taskset:
        assert [taskset.row(row)["level"] for row in (2499, 0, 1)] == [2499, 0, 1]


def test_json_lines_that_are_called_json_and_labels_of_csv(tmp_path: Path) -> None:
    (tmp_path / "lines.json").write_text('\n{"n": 1}\n{"n": 2}\n')
    with Taskset.open(spec(tmp_path / "lines.json")) as taskset:
        assert [row["n"] for row in taskset.rows()] == [1, 2]
    (tmp_path / "labels.csv").write_bytes(b'\xef\xbb\xbfprompt,label,note\r\n"a, ""b""\n c",True,\r\n\r\nd,0,007\r\n')
    with Taskset.open(spec(tmp_path / "labels.csv")) as taskset:
        assert list(taskset.rows()) == [
            {"prompt": 'a, "b"\n c', "label": True, "note": None},
            {"prompt": "d", "label": False, "note": "007"},
        ]
        with pytest.raises(DataError, match=r"labels\.csv:5"):
            taskset.task(1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.json", b'[{"n": 1}, 2]', r"(?s)a JSON int, not an object.*row 1 \(byte 11\)"),
        ("rows.json", b'[{"n": 1}', r"(?s)not a JSON list.*rows\.json"),
        ("rows.json", b"[]", "has no rows"),
        ("rows.csv", b"", "has no rows"),
        ("rows.csv", b"a,b\n1,2\n3\n", r"(?s)has 1 values, and the first line names 2 columns.*rows\.csv:3"),
        ("rows.csv", b'a,b\n1,"2\n3,4\n', r"(?s)not CSV.*rows\.csv:"),
        ("rows.csv", b"a,a\n1,2\n", r"(?s)two columns are named 'a'.*rows\.csv:1"),
        ("rows.csv", b"a,b\n1,\xff\n", r"(?s)not UTF-8.*rows\.csv:2"),
        ("rows.csv", b"a\n" + b"x" * 2**20 + b"\n", r"(?s)longer than.*rows\.csv:2"),
        ("rows.parquet", b"", r"(?s)not readable as parquet.*rows\.parquet"),
        ("rows.parquet", b"PAR1 and no more PAR1", r"(?s)not readable as parquet.*rows\.parquet"),
        ("rows.arrow", b"ARROW1 and no more", r"(?s)not readable as arrow.*rows\.arrow"),
        ("rows.arrow", b"neither", r"(?s)not readable as arrow.*rows\.arrow"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        Taskset.open(spec(tmp_path / name))


def test_a_file_that_is_broken_in_the_middle_is_named_before_a_copy_is_there(tmp_path: Path, log: Logger) -> None:
    path = tmp_path / "rows.parquet"
    datasets.Dataset.from_list(ROWS).to_parquet(path)
    data = bytearray(path.read_bytes())
    data[200 : len(data) // 2] = bytes(len(data) // 2 - 200)
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"(?s)not readable as parquet.*rows\.parquet"):
        Taskset.open(spec(path), experiment_copies(str(tmp_path / "job"), log))
    assert not list((tmp_path / "job" / "datasets").glob("*.arrow"))
    assert not list((tmp_path / "job" / "datasets").glob(".*.tmp"))


def test_a_copy_is_written_once_and_again_for_other_bytes(tmp_path: Path, log: Logger) -> None:
    path = tmp_path / "rows.parquet"
    datasets.Dataset.from_list(ROWS).to_parquet(path)
    os.utime(path, ns=(10**18, 10**18))
    copies = experiment_copies(str(tmp_path / "job"), log)
    folder = tmp_path / "job" / "datasets"
    with Taskset.open(spec(path), copies) as first:
        (copy,) = folder.glob("*.arrow")
        inode = copy.stat().st_ino
        with Taskset.open(spec(path), copies) as again:
            assert again.digest == first.digest
        assert [each.stat().st_ino for each in folder.glob("*.arrow")] == [inode]
        path.unlink()
        datasets.Dataset.from_list(ROWS[::-1]).to_parquet(path)
        os.utime(path, ns=(10**18, 10**18))
        with Taskset.open(spec(path), copies) as other:
            assert other.digest != first.digest
            assert (first.row(0)["level"], other.row(0)["level"]) == (0, 2499)


def test_what_a_killed_writer_left_is_taken_away(tmp_path: Path, log: Logger) -> None:
    path = tmp_path / "rows.parquet"
    datasets.Dataset.from_list(ROWS[:3]).to_parquet(path)
    copies = experiment_copies(str(tmp_path / "job"), log)
    folder = tmp_path / "job" / "datasets"
    with Taskset.open(spec(path), copies):
        (copy,) = folder.glob("*.arrow")
    copy.unlink()
    stale = folder / f".{copy.name}.killed.tmp"
    stale.write_bytes(b"half")
    with Taskset.open(spec(path), copies) as taskset:
        assert taskset.row(2)["level"] == 2
    assert copy.exists()
    assert not stale.exists()


def test_a_digest_is_taken_from_the_stamp_only_of_what_did_not_change(tmp_path: Path, log: Logger) -> None:
    path = tmp_path / "rows.parquet"
    datasets.Dataset.from_list(ROWS[:3]).to_parquet(path)
    copies = experiment_copies(str(tmp_path / "job"), log)
    with Taskset.open(spec(path), copies) as taskset:
        right = taskset.digest
    (note,) = (tmp_path / "job" / "datasets").glob("*.json")
    noted = json.loads(note.read_bytes())
    note.write_text(json.dumps({**noted, "digest": "f" * 64}))
    # Noted within a second of the file's last change: such a note is not believed.
    os.utime(note, ns=(path.stat().st_ctime_ns,) * 2)
    with Taskset.open(spec(path), copies) as taskset:
        assert taskset.digest == right
    assert json.loads(note.read_bytes())["digest"] == right


@pytest.mark.parametrize("suffix", sorted(WRITERS))
def test_rows_to_train_on_are_of_every_format(tmp_path: Path, log: Logger, suffix: str) -> None:
    path = tmp_path / f"train.{suffix}"
    WRITERS[suffix](datasets.Dataset.from_list(ROWS[:3]), path)
    form = Format(prompt_type="raw", prompt_key="question", response_key="answer")
    with Taskset.open(spec(path, format=form), experiment_copies(str(tmp_path / "job"), log)) as taskset:
        (row,) = taskset.train_rows(2, tokenizer=ByteTokenizer(), max_model_len=200)
    assert bytes(row.tokens[row.prompt_tokens : -1].tolist()) == b"02"


def test_tables_are_copied_before_a_lease_needs_them(tmp_path: Path, log: Logger) -> None:
    tables = tmp_path / "rows.parquet"
    datasets.Dataset.from_list(ROWS).to_parquet(tables)
    lines = tmp_path / "rows.jsonl"
    lines.write_text('{"question": "q", "answer": "a"}\n')
    stage = stage_of(taskset=spec(tables), evals=(spec(lines), spec(tmp_path / "gone.parquet")))
    experiment = ExperimentSpec(project="p", name="n", job_dir=str(tmp_path / "job"), stages=(stage,), config={})

    async def truth_of(row: int) -> str:
        tasksets = OpenTasksets(log)
        await tasksets.copy(experiment)
        assert len(list((tmp_path / "job" / "datasets").glob("*.arrow"))) == 1
        return (await tasksets.get(spec(tables), "")).task(row).truth

    assert asyncio.run(truth_of(2000)) == "02000"


def test_without_the_extra_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rftd.ops.extras.find_spec", lambda name: None)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(NotInstalledError, match=r"pip install 'rftd\[data\]'"):
        Taskset.open(spec(tmp_path / "rows.parquet"))
