"""Data that cannot be: named with file, row and column where it is handed in, before anything is trained."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic.daemon.scene import EXPERIMENT, QUEUE, SHORT, Scene
from synthetic.until import poll

from rftd.daemon.http.views import tasks as view
from rftd.ops.errors import UsageError
from rftd.streams.events.step import StepCompleted

pytestmark = pytest.mark.e2e
TASKSET = "buffer.explorer_input.taskset"
ROWS = [{"question": f"{number}+1=", "answer": str(number + 1)} for number in range(3000)]


@pytest.fixture(scope="module")
def bad_data_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One daemon for the whole file, with a cache of the hub of its own."""
    folder = tmp_path_factory.mktemp("bad-data")
    scene = Scene(folder, environ={"HF_HOME": str(folder / "huggingface")})
    with scene.host:
        yield scene
        assert scene.host.restarts == 0


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def broken_parquet(folder: Path) -> str:
    """A column of the second group is zeroes."""
    file = folder / "broken.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), file, row_group_size=1000, compression="none", use_dictionary=False)
    column = pq.ParquetFile(file).metadata.row_group(1).column(1)
    data = bytearray(file.read_bytes())
    data[column.data_page_offset : column.data_page_offset + 64] = bytes(64)
    file.write_bytes(data)
    return str(file)


def mixed_types(folder: Path) -> str:
    lines(folder / "mixed.jsonl", [*ROWS[:700], {"question": {"text": "1+1="}, "answer": "2"}])
    return str(folder / "mixed.jsonl")


def mixed_truths(folder: Path) -> str:
    lines(folder / "truths.jsonl", [*ROWS[:700], {"question": "1+1=", "answer": ["2"]}])
    return str(folder / "truths.jsonl")


def null_rows(folder: Path) -> str:
    lines(folder / "null.jsonl", [*ROWS[:700], {"question": "1+1=", "answer": None}])
    return str(folder / "null.jsonl")


def half_the_files(folder: Path) -> str:
    parts = folder / "halves"
    parts.mkdir()
    for number in range(4):
        rows = ROWS[number * 5 : number * 5 + 5] if number < 2 else [{"question": row["question"]} for row in ROWS[:5]]
        pq.write_table(pa.Table.from_pylist(rows), parts / f"train-{number:05d}-of-00004.parquet")
    return str(parts)


def empty_folder(folder: Path) -> str:
    (folder / "empty").mkdir()
    return str(folder / "empty")


def snapshot(folder: Path, name: str, commit: str) -> Path:
    """The folder of a commit in the cache of the hub, with the reference `main` to it."""
    kept = folder / "huggingface" / "hub" / f"datasets--ann--{name}"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text(commit)
    (kept / "snapshots" / commit).mkdir(parents=True)
    return kept / "snapshots" / commit


def half_a_snapshot(folder: Path) -> str:
    files = snapshot(folder, "half", "a" * 40)
    pq.write_table(pa.Table.from_pylist(ROWS[:5]), files / "train-00000-of-00002.parquet")
    return "ann/half"


def gone_blob(folder: Path) -> str:
    files = snapshot(folder, "blobs", "b" * 40)
    lines(files / "train.jsonl", ROWS[:5])
    (files / "test.jsonl").symlink_to(folder / "huggingface" / "gone")
    return "ann/blobs"


def gone_revision(folder: Path) -> str:
    lines(snapshot(folder, "moved", "c" * 40) / "train.jsonl", ROWS[:5])
    return "ann/moved@v9"


@pytest.mark.parametrize(
    ("make", "field", "says"),
    [
        (broken_parquet, "path", ["not readable as parquet in column 'answer'", "broken.parquet row 1"]),
        (mixed_types, "format.prompt_key", ["has a mapping under 'question'", "mixed.jsonl:701"]),
        (mixed_truths, "format.response_key", ["has a list under 'answer'", "truths.jsonl:701"]),
        (null_rows, "format.response_key", ["has null under 'answer'", "null.jsonl:701"]),
        (half_the_files, "format.response_key", ["no value under 'answer'", "train-00002-of-00004.parquet row 0"]),
        (empty_folder, "path", ["there is no file of rows", "empty"]),
        (half_a_snapshot, "path", ["train-00001-of-00002.parquet is missing", "a" * 40]),
        (gone_blob, "path", ["the dataset is not whole: test.jsonl is not there", "b" * 40]),
        (gone_revision, "path", ["ann/moved@v9", "--revision v9, or rftd submit --pull"]),
    ],
)
@pytest.mark.parametrize("trained", [False, True], ids=["tasks", "rows"])
def test_it_is_refused_by_file_row_and_column(
    bad_data_scene: Scene, tmp_path: Path, make: Callable[[Path], str], field: str, says: list[str], trained: bool
) -> None:
    scene = bad_data_scene
    hub = make in (half_a_snapshot, gone_blob, gone_revision)
    cache = scene.folder / "huggingface"
    if hub and cache.exists():
        cache.rename(tmp_path / "earlier")
    path = make(scene.folder if hub else tmp_path)
    text = EXPERIMENT
    section = TASKSET
    if trained:
        text = text.replace("name: warmup\n        path: ./train.jsonl", f"name: warmup\n        path: {path}")
        section = "stages[0].buffer.trainer_input.experience_buffer"
    scene.write(text)
    said = scene.rftd("submit", "exp.yaml", *(() if trained else ("-s", f"{TASKSET}.path={path}")))
    assert said.status == 2, said
    assert "Traceback" not in said.err
    assert f"error[RFTD-DAT-001] {section}.{field}" in said.err
    for words in says:
        assert words in said.err, said.err
    assert "fix:" in said.err


def test_a_folder_that_changed_before_it_was_opened_trains_nothing(bad_data_scene: Scene) -> None:
    scene = bad_data_scene
    parts = scene.folder / "parts"
    parts.mkdir()
    lines(parts / "a.jsonl", ROWS[:20])
    before = len(scene.events(StepCompleted))
    first = scene.submit(EXPERIMENT, *QUEUE, "name=first")
    scene.until_state(first, "running")
    second = scene.submit(EXPERIMENT, *SHORT, "name=second", f"{TASKSET}.path={parts}")
    lines(parts / "b.jsonl", ROWS[20:40])
    assert scene.rftd("cancel", first).status == 0
    poll(lambda: "has digest" in scene.rftd("why", second).out)
    told = scene.rftd("why", second).out
    assert str(parts) in told
    assert len(scene.events(StepCompleted)) == before
    (parts / "b.jsonl").unlink()
    assert scene.rftd("resume", second).status in (0, 5)
    assert scene.until_ended(second).experiment.summary.state == "completed", "what was restored is taken up"


def test_more_tasks_at_once_than_a_request_may_have(bad_data_scene: Scene) -> None:
    scene = bad_data_scene
    name = scene.submit(EXPERIMENT, *QUEUE, "name=many")
    scene.until_state(name, "running")
    with scene.client() as client, pytest.raises(UsageError, match="1000"):
        client.send(view.add_tasks, view.AddTasks(tasks=[*ROWS[:1001]]), name=name)
    garbage = scene.folder / "garbage.jsonl"
    garbage.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:1200]) + '{"question": 3}\n')
    said = scene.rftd("tasks", "add", name, "garbage.jsonl")
    assert said.status == 2, said
    assert "tasks[200]" in said.err
    assert "no value under 'answer'" in said.err
    assert scene.rftd("cancel", name).status == 0
