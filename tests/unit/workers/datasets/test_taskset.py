"""Tasksets: which files, which rows, what is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from rftd.ops import limits
from rftd.ops.errors import DataError
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.files import taskset_files
from rftd.workers.datasets.taskset import Taskset

GSM8K = Path(__file__).parents[5] / "shared" / "data" / "gsm8k"


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def spec(path: Path, **fields: Any) -> TasksetSpec:
    return TasksetSpec(name="t", path=str(path), **fields)


def test_rows_in_file_order_and_line_order(tmp_path: Path) -> None:
    write(tmp_path / "train-00001-of-00002.jsonl", {"n": 2}, {"n": 3})
    first = write(tmp_path / "train-00000-of-00002.jsonl", {"n": 0}, {"n": 1})
    with first.open("a") as file:
        file.write("\n  \n")
    with Taskset.open(spec(tmp_path)) as taskset:
        assert len(taskset) == 4
        assert [row["n"] for row in taskset.rows()] == [0, 1, 2, 3]
        assert taskset.row(2) == {"n": 2}
        data = b"".join(file.read_bytes() for file in sorted(tmp_path.iterdir()))
        assert taskset.digest == hashlib.sha256(data).hexdigest()
        for index in (-1, 4):
            with pytest.raises(DataError, match="rows 0 to 3"):
                taskset.row(index)


def test_limit_rows_cuts_rows_and_not_the_digest(tmp_path: Path) -> None:
    write(tmp_path / "train_0.jsonl", {"n": 0}, {"n": 1})
    write(tmp_path / "train_1.jsonl", {"n": 2}, {"n": 3})
    with Taskset.open(spec(tmp_path)) as whole, Taskset.open(spec(tmp_path, limit_rows=3)) as part:
        assert [row["n"] for row in part.rows()] == [0, 1, 2]
        assert part.digest == whole.digest
        assert part.locate(3) == (0, 1)


def test_a_file_without_a_last_line_break_and_a_replaced_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 0}\n{"n": 1}')
    with Taskset.open(spec(path)) as taskset:
        path.unlink()
        path.write_text("other")
        assert [row["n"] for row in taskset.rows()] == [0, 1]


@pytest.mark.parametrize(
    ("files", "fields", "expected"),
    [
        (["train.jsonl", "test.jsonl"], {}, ["train.jsonl"]),
        (["train.jsonl", "test.jsonl"], {"split": "test"}, ["test.jsonl"]),
        (["main/train.jsonl", "train.jsonl"], {"subset": "main"}, ["main/train.jsonl"]),
        (["train.jsonl", "test.jsonl"], {"subset": "main"}, ["train.jsonl"]),
        (["train.jsonl", "train-old.jsonl"], {}, ["train.jsonl"]),
        (["b.jsonl", "a.jsonl", "notes.txt"], {}, ["a.jsonl", "b.jsonl"]),
        (["main/rows.jsonl"], {"subset": "main"}, ["main/rows.jsonl"]),
        (["train.parquet", "train.jsonl"], {}, ["train.jsonl"]),
        (
            ["main/train-00000-of-00001.parquet", "main/test-00000-of-00001.parquet"],
            {"subset": "main"},
            ["main/train-00000-of-00001.parquet"],
        ),
        (
            ["data/train-00001-of-00002.parquet", "data/train-00000-of-00002.parquet"],
            {},
            ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
        ),
        (["test/b.csv", "test/a.csv", "train/c.csv"], {"split": "test"}, ["test/a.csv", "test/b.csv"]),
        (["rows.jsonl", "test.csv", "dataset_infos.json"], {"split": "test"}, ["test.csv"]),
    ],
)
def test_which_files_of_a_folder_are_meant(
    tmp_path: Path, files: list[str], fields: dict[str, Any], expected: list[str]
) -> None:
    for name in files:
        write(tmp_path / name, {"n": 0})
    assert taskset_files(spec(tmp_path, **fields)) == tuple(tmp_path / name for name in expected)


@pytest.mark.parametrize(
    ("files", "fields", "message"),
    [
        ([], {}, r"no file of rows \(looked for train\.jsonl, \.parquet"),
        (["train-sft.jsonl", "train-rl.jsonl"], {}, "could mean any of train-rl.jsonl, train-sft.jsonl"),
        (["test.jsonl", "more.jsonl"], {}, "no file is named for split 'train'; the splits are more.jsonl, test.jsonl"),
        (["rows.jsonl"], {"split": "test"}, "no file is named for split 'test'"),
        (["train.txt"], {"subset": "main"}, r"(?s)no file of rows \(looked for train\.jsonl.*also in main"),
        (["train.csv", "train.parquet"], {}, "split 'train' could mean any of train.parquet, train.csv"),
        (["rows.csv", "rows.json"], {}, "several formats could be meant: rows.csv, rows.json"),
        (["train.jsonl.gz"], {}, "unpack train.jsonl.gz"),
        (["train.jsonl"], {"split": "train[:10%]"}, "(?s)not a plain name.*limit_rows"),
        (["train.jsonl"], {"subset": "../x"}, "not a plain name"),
    ],
)
def test_a_folder_with_no_or_two_readings_is_refused(
    tmp_path: Path, files: list[str], fields: dict[str, Any], message: str
) -> None:
    for name in files:
        write(tmp_path / name, {"n": 0})
    with pytest.raises(DataError, match=message) as caught:
        Taskset.open(spec(tmp_path, **fields))
    assert caught.value.where
    assert str(tmp_path) in caught.value.where


def test_a_file_that_is_missing_is_named_and_no_other(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file or folder '.*/held\.jsonl'\n") as caught:
        Taskset.open(spec(tmp_path / "held.jsonl"))
    assert caught.value.fix is not None
    assert "to_json('held.jsonl')` and set path to it" in caught.value.fix


def test_a_hub_name_is_answered_with_how_to_fetch_it() -> None:
    command = "hf download openai/gsm8k --repo-type dataset --revision v1, or rftd submit --pull;"
    message = f"(?s)no file or folder 'openai/gsm8k@v1'.*{command}"
    with pytest.raises(DataError, match=message):
        Taskset.open(spec(Path("openai/gsm8k@v1"), split="test"))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.txt is not a \.jsonl, .* or \.json file"):
        Taskset.open(spec(write(tmp_path / "rows.txt")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no rows"),
        (b"\n\n", "has no rows"),
        (b'{"n": 1}\n\n{"n": \n', r"(?s)not JSON.*rows\.jsonl:3"),
        (b'{"n": 1}\n[1]\n', r"(?s)a JSON list, not an object.*rows\.jsonl:2"),
        (b'{"n": NaN}\n', r"(?s)not JSON.*rows\.jsonl:1"),
        (b'{"n": "\xff"}\n', r"(?s)not JSON.*rows\.jsonl:1"),
        (b'\xef\xbb\xbf{"n": 1}\n', r"(?s)not JSON.*rows\.jsonl:1"),
        (b'{"n": "\\ud800"}\n', r"(?s)not JSON.*rows\.jsonl:1"),
        (b'{"n": 1e999}\n', r"(?s)not JSON.*rows\.jsonl:1"),
        (b'{"n": 1}\n{"n": 1} {"n": 2}\n', r"(?s)not JSON.*rows\.jsonl:2"),
        (b'{"n": 1}\n{"n": ' + b"[" * 5000 + b"]" * 5000 + b"}\n", r"(?s)not JSON.*rows\.jsonl:2"),
        (b'{"n": "' + b"x" * limits.TASKSET_ROW_SIZE_BYTES + b'"}\n', r"(?s)longer than 1048576 bytes.*rows\.jsonl:1"),
    ],
)
def test_empty_and_malformed_files_are_refused_with_the_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        Taskset.open(spec(path))


def test_the_quick_starts_taskset_on_real_rows() -> None:
    if not GSM8K.is_dir():
        pytest.skip("the GSM8K files are not beside this checkout")
    form = Format(prompt_key="question", response_key="answer")
    with Taskset.open(spec(GSM8K, subset="main", split="test", format=form)) as taskset:
        assert len(taskset) == 1319
        task = taskset.task(0)
        assert task.prompt.startswith("Janet")
        assert task.truth.endswith("#### 18")
        assert [message.role for message in task.messages] == ["user"]
