"""`storage_type: sql`: a table is read once, in the order of its primary key, into a file that does not change."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest
from msgspec.structs import replace
from synthetic.log.synthetic_run import spec_of

from rftd.daemon.run.supervisor.kept_tables import KeptTables
from rftd.daemon.run.supervisor.sql_tables import SqlTables
from rftd.daemon.trust.allowances import Allowances
from rftd.daemon.trust.asker import OWNER, AccessRole, Asker, NotAllowedError
from rftd.daemon.trust.judge import SubmissionJudge
from rftd.ops.errors import ConfigError, DataError
from rftd.storage.files.folder_owner import LogIdentity
from rftd.streams.folds.spine import Kept

CREATE = "CREATE TABLE tasks (id INTEGER PRIMARY KEY, question TEXT, answer TEXT, weight FLOAT)"
INSERT = "INSERT INTO tasks VALUES (3, 'c', '3', 0.5), (1, 'a', '1', NULL), (2, 'b', '2', 1.5)"
ROWS = [
    {"id": 1, "question": "a", "answer": "1", "weight": None},
    {"id": 2, "question": "b", "answer": "2", "weight": 1.5},
    {"id": 3, "question": "c", "answer": "3", "weight": 0.5},
]


LOG = LogIdentity(id="ours", place="/data")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.db"
    with sqlite3.connect(path) as connection:
        connection.execute(CREATE)
        connection.execute(INSERT)
        connection.execute("CREATE TABLE loose (question TEXT)")
    return path


def file_of(root: Path, source: Any, name: str = "tasks") -> dict[str, Any]:
    taskset = {"storage_type": "sql", "path": source, "name": name}
    return {"checkpoint_root_dir": str(root), "buffer": {"explorer_input": {"taskset": taskset}}}


def owners(environ: dict[str, str] | None = None) -> SqlTables:
    return SqlTables(environ or {}, SubmissionJudge(OWNER, Allowances()), KeptTables(LOG))


def read(root: Path, source: Any, environ: dict[str, str] | None = None, name: str = "tasks") -> Path:
    taskset = owners(environ).read(file_of(root, source, name))["buffer"]["explorer_input"]["taskset"]
    assert taskset["storage_type"] == "file"
    return Path(taskset["path"])


def rows_in(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_table_of_sqlite_is_kept_as_it_was(tmp_path: Path, database: Path) -> None:
    url = f"sqlite:///{database}"
    first = read(tmp_path / "root", url)
    assert first.parent == tmp_path / "root" / ".tables" / LOG.id
    assert rows_in(first) == ROWS
    assert read(tmp_path / "root", {"env": "TASKS"}, {"TASKS": url}) == first, "the same rows are the same file"
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE tasks SET answer = '7' WHERE id = 2")
    second = read(tmp_path / "root", url)
    assert second != first
    assert (rows_in(first)[1]["answer"], rows_in(second)[1]["answer"]) == ("2", "7")
    assert sorted(path.name for path in first.parent.iterdir()) == sorted([first.name, second.name])
    assert not list(tmp_path.glob("tasks.db-*")), "the database keeps its journal"


def test_a_table_of_postgres_is_kept_as_it_was(tmp_path: Path, postgres_url: str) -> None:
    async def fill() -> None:
        connection = await asyncpg.connect(postgres_url)
        await connection.execute(CREATE)
        await connection.execute(INSERT)
        await connection.close()

    asyncio.run(fill())
    file = read(tmp_path, {"env": "TASKS"}, {"TASKS": postgres_url})
    assert rows_in(file) == ROWS
    assert rows_in(read(tmp_path, {"env": "TASKS"}, {"TASKS": postgres_url}, name="public.tasks")) == ROWS


@pytest.mark.parametrize(
    ("source", "name", "says"),
    [
        ("sqlite:///DB", "task", "there is no table 'task'; did you mean 'tasks'"),
        ("sqlite:///DB", "loose", "no primary key"),
        ("sqlite:///DB-gone", "tasks", "cannot be read: .*unable to open"),
        ("sqlite:///relative.db", "tasks", "is relative"),
        ("mysql://h/d", "tasks", "mysql is not a supported database"),
        ("tasks.db", "tasks", "is not the URL"),
        ({"env": "GONE"}, "tasks", "no variable GONE"),
        ("sqlite:///DB", "", "name of the table"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, database: Path, source: Any, name: str, says: str) -> None:
    text = source.replace("DB", str(database)) if isinstance(source, str) else source
    with pytest.raises((ConfigError, DataError), match=rf"(?s)explorer_input.taskset.*{says}"):
        read(tmp_path / "root", text, name=name)
    assert not list((tmp_path / "root").rglob("*.jsonl"))


def test_a_path_is_opened_as_it_is_judged(tmp_path: Path, database: Path) -> None:
    """The URL is decoded once: SQLite would decode the path of its own again, in which `%2e%2e` is a way up."""
    (tmp_path / "below").mkdir()
    with pytest.raises(DataError, match="unable to open"):
        read(tmp_path / "root", f"sqlite:///{tmp_path}/below/%252e%252e/tasks.db")
    odd = tmp_path / "50% of #1.db"
    database.rename(odd)
    assert rows_in(read(tmp_path / "root", f"sqlite:///{quote(str(odd))}")) == ROWS


def test_an_experience_buffer_is_no_table_of_rows_unless_rows_are_trained(tmp_path: Path, database: Path) -> None:
    buffer = {"storage_type": "sql", "path": f"sqlite:///{database}", "name": "tasks"}
    config = {"checkpoint_root_dir": str(tmp_path), "buffer": {"trainer_input": {"experience_buffer": buffer}}}
    assert owners().read(config) == config
    trains = {**config, "mode": "train"}
    staged = owners().read({"checkpoint_root_dir": str(tmp_path), "stages": [trains]})["stages"][0]
    for changed in (owners().read(trains), staged):
        assert rows_in(Path(changed["buffer"]["trainer_input"]["experience_buffer"]["path"])) == ROWS


@pytest.mark.parametrize(
    ("source", "allowed"),
    [
        ("sqlite:////outside/tasks.db", False),
        ("sqlite:///ROOT/tasks.db", True),
        ("postgresql://db.example:5432/d", False),
        ("postgresql://allowed.example:5432/d", True),
        ("postgresql://allowed.example:5432/d?passfile=/etc/passwd", False),
        ("postgresql://allowed.example:5432/x@db.example:5432/d", False),
        ("postgresql://allowed.example:5432#@db.example:5432/d", False),
        ("postgresql://allowed.example:port/d", False),
        ("sqlite:///ROOT/tasks.db#/../../outside/tasks.db", False),
        ("sqlite:///ROOT/%2e%2e/outside/tasks.db", False),
        ("sqlite:///ROOT/tasks.db?mode=rw", False),
        ("no URL", False),
        ({"env": "HOME"}, False),
        ({"env": "GRANTED"}, True),
    ],
)
def test_others_name_the_databases_that_are_allowed(tmp_path: Path, source: Any, allowed: bool) -> None:
    root = tmp_path.resolve()
    lists = Allowances(roots=(str(root),), allow_urls=("allowed.example:5432",), secrets={"GRANTED": ("db.example",)})
    judge = SubmissionJudge(Asker("ann", AccessRole.SUBMIT), lists)
    text = source.replace("ROOT", str(root)) if isinstance(source, str) else source
    if allowed:
        judge.database(("path",), text)
        assert judge.grants
    else:
        with pytest.raises(NotAllowedError):
            judge.database(("path",), text)


def test_a_table_that_changes_while_it_is_read_is_kept_in_one_state(tmp_path: Path, database: Path) -> None:
    """Each transaction of the writer gives all rows one answer, so a file that holds two has seen two states."""
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA journal_mode=WAL")  # else a writer that never rests keeps readers out
        connection.execute("DELETE FROM tasks")
        rows = [(number, f"{number}?", "0") for number in range(5000)]
        connection.executemany("INSERT INTO tasks (id, question, answer) VALUES (?, ?, ?)", rows)
    ended = threading.Event()

    def write() -> None:
        answer = 0
        while not ended.is_set():
            answer += 1
            with closing(sqlite3.connect(database, timeout=60.0)) as connection, connection:
                connection.execute("UPDATE tasks SET answer = ?", (str(answer),))

    writer = threading.Thread(target=write, name="writer")
    writer.start()
    try:
        files = [read(tmp_path / "root", f"sqlite:///{database}") for _ in range(8)]
    finally:
        ended.set()
        writer.join()
    for file in files:
        kept = rows_in(file)
        assert len(kept) == 5000
        assert len({row["answer"] for row in kept}) == 1


def test_a_file_that_no_experiment_reads_goes_after_a_while_and_another_logs_stays(
    tmp_path: Path, database: Path
) -> None:
    root = tmp_path / "root"
    url = f"sqlite:///{database}"
    first = read(root, url)
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE tasks SET answer = '7'")
    second = read(root, url)
    others = root / ".tables" / "theirs" / second.name
    others.parent.mkdir()
    others.write_text("{}")
    reads = {"checkpoint_root_dir": str(root), "buffer": {"explorer_input": {"taskset": {"path": str(first)}}}}
    removed = {"checkpoint_root_dir": str(root), "buffer": {"explorer_input": {"taskset": {"path": str(second)}}}}
    entries = [entry_of(reads, Kept.ARCHIVED), entry_of(removed, Kept.REMOVED)]
    now_ns = second.stat().st_mtime_ns
    kept = KeptTables(LOG)
    assert kept.unused(entries, now_ns=now_ns) == [], "a submission may be about to name it"
    later_ns = now_ns + 3600 * 10**9
    assert [unused.path for unused in kept.unused(entries, now_ns=later_ns)] == [str(second)]
    os.utime(second, ns=(0, 0))
    assert read(root, url) == second
    assert second.stat().st_mtime_ns >= now_ns, "read again, it is as if it were new"
    assert KeptTables(None).unused(entries, now_ns=later_ns) == []


def entry_of(config: dict[str, Any], kept: Kept) -> Any:
    spec = replace(spec_of("small", 3), config=config)
    return SimpleNamespace(spec=spec, spine=SimpleNamespace(kept=kept))
