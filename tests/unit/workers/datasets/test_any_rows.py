"""Tasksets of any rows: what was written is what is read, wherever it lies, and a fault is found at its line."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rftd.ops import limits
from rftd.ops.errors import DataError
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.taskset import Taskset

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ROWS = st.dictionaries(st.text(max_size=8), VALUES, max_size=4)
BLANKS = st.sampled_from([b"", b"\n", b"  \n", b"\r\n", b"\t \n\n", b"\x0c\n"])


def spec_of(path: Path, **fields: Any) -> TasksetSpec:
    form = Format(prompt_key="q", response_key="a")
    return TasksetSpec(name="t", path=str(path), format=form, **fields)


@settings(max_examples=40, deadline=None)
@given(
    files=st.lists(
        st.lists(st.tuples(BLANKS, ROWS, st.booleans(), st.sampled_from([b"\n", b"\r\n"])), max_size=4),
        min_size=1,
        max_size=3,
    ),
    limit=st.none() | st.integers(1, 8),
    open_end=st.booleans(),
)
def test_what_was_written_is_read_in_order_whatever_lies_between(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[tuple[bytes, dict[str, Any], bool, bytes]]],
    limit: int | None,
    open_end: bool,
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    everything = b""
    rows: list[dict[str, Any]] = []
    for number, lines in enumerate(files):
        content = b"".join(
            blank + json.dumps(row, ensure_ascii=ascii).encode() + end for blank, row, ascii, end in lines
        )
        content = content.rstrip(b"\r\n") if open_end else content
        (folder / f"train-{number:05}-of-{len(files):05}.jsonl").write_bytes(content)
        everything += content
        rows += [row for _, row, _, _ in lines]
    expected = rows if limit is None else rows[:limit]
    if not expected:
        with pytest.raises(DataError, match="has no rows"):
            Taskset.open(spec_of(folder, limit_rows=limit))
        return
    with Taskset.open(spec_of(folder, limit_rows=limit)) as taskset:
        assert len(taskset) == len(expected)
        assert list(taskset.rows()) == expected
        assert [taskset.row(index) for index in reversed(range(len(expected)))] == expected[::-1]
        assert taskset.digest == hashlib.sha256(everything).hexdigest()
        assert taskset.present_digest() == taskset.digest
        assert not taskset.touched


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(ROWS, max_size=5),
    blank=BLANKS,
    broken=st.sampled_from([b"{", b"[]", b"1", b'"x"', b"{}{}", b"nul", b"\xff"]),
)
def test_the_line_of_a_fault_is_named_however_many_are_above_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], blank: bytes, broken: bytes
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    above = b"".join(json.dumps(row).encode() + b"\n" + blank for row in rows)
    path.write_bytes(above + broken + b"\n" + b'{"fine": 1}\n')
    with pytest.raises(DataError) as raised:
        Taskset.open(spec_of(path))
    assert (raised.value.where or "").rpartition(":")[2] == str(above.count(b"\n") + 1)


def test_a_row_that_makes_no_task_is_named_by_file_line_and_row(tmp_path: Path) -> None:
    (tmp_path / "train-00000-of-00002.jsonl").write_text('\n{"q": "1", "a": "1"}\n')
    (tmp_path / "train-00001-of-00002.jsonl").write_text('{"q": "2", "a": "2"}\n\n\n{"question": "3"}\n')
    with Taskset.open(spec_of(tmp_path)) as taskset:
        assert [taskset.task(index).truth for index in (0, 1)] == ["1", "2"]
        with pytest.raises(DataError, match="no value under 'q'") as raised:
            taskset.task(2)
        where = raised.value.where or ""
        assert where.startswith(f"{tmp_path / 'train-00001-of-00002.jsonl'}:4, ")
        assert where.endswith("row 2")


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_the_longest_line_is_just_the_limit(tmp_path: Path, spare: int) -> None:
    path = tmp_path / "rows.jsonl"
    empty = len(b'{"q": ""}\n')
    path.write_bytes(b'{"q": "' + b"x" * (limits.TASKSET_ROW_SIZE_BYTES - empty - spare) + b'"}\n{"q": ""}\n')
    if spare < 0:
        with pytest.raises(DataError, match="longer than"):
            Taskset.open(spec_of(path))
        return
    with Taskset.open(spec_of(path)) as taskset:
        assert len(taskset.row(0)["q"]) == limits.TASKSET_ROW_SIZE_BYTES - empty - spare
        assert taskset.row(1) == {"q": ""}


def cut(path: Path) -> None:
    os.truncate(path, 5)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"x" * 12)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"q": 4}\n')


@pytest.mark.parametrize(("change", "readable"), [(cut, False), (overwrite, False), (append, True)])
def test_a_file_that_is_written_to_while_it_is_open_is_noticed(
    tmp_path: Path, change: Callable[[Path], None], readable: bool
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"q": 1}\n{"q": 2}\n{"q": 3}\n')
    with Taskset.open(spec_of(path)) as taskset:
        before = taskset.digest
        assert not taskset.touched
        change(path)
        os.utime(path, ns=(1, 1))
        assert taskset.touched
        assert len(taskset) == 3
        if readable:
            assert taskset.row(0) == {"q": 1}
        else:
            with pytest.raises(DataError, match="not JSON") as raised:
                taskset.row(0)
            assert "row 0 (byte 0)" in (raised.value.where or "")
        after = taskset.present_digest()
        assert after == hashlib.sha256(path.read_bytes()).hexdigest()
        assert after != before
        assert not taskset.touched


def test_threads_may_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"q": {number}}}\n' for number in range(500)))
    wrong: list[object] = []
    with Taskset.open(spec_of(path)) as taskset:

        def read(step: int) -> None:
            for index in range(0, 500, step):
                row = taskset.row(index)
                if row != {"q": index}:
                    wrong.append((index, row))

        threads = [threading.Thread(target=read, args=(step,)) for step in (1, 2, 3, 5, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"q": 1}\n')
    taskset = Taskset.open(spec_of(path))
    taskset.close()
    taskset.close()


def test_of_keys_that_come_twice_the_last_counts_as_in_python(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"q": "first", "q": "second", "a": "1"}\n')
    with Taskset.open(spec_of(path)) as taskset:
        assert taskset.task(0).prompt == "second"


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b'\xef\xbb\xbf{"q": "1"}\n', "begins with a byte order mark"),
        ('{"q": "1"}\n'.encode("utf-16"), "is UTF-16 or UTF-32"),
        ('{"q": "1"}\n'.encode("utf-16-le"), "is UTF-16 or UTF-32"),
        ('{"q": "1"}\n'.encode("utf-32"), "is UTF-16 or UTF-32"),
        (b'{"q": "1", "score": NaN}\n', "has NaN under 'score'"),
        (b'{"q": "1", "score": -Infinity}\n', "has an infinite number under 'score'"),
        (b'{"q": "1", "score": }\n', "line is not JSON"),
    ],
)
def test_what_other_tools_write_is_named(tmp_path: Path, content: bytes, cause: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=cause) as raised:
        Taskset.open(spec_of(path))
    assert raised.value.where == f"{path}:1"
    assert raised.value.fix
