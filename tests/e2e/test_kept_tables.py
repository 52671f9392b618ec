"""A table of a database that an experiment reads: its file goes when the last experiment that reads it is removed."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.until import poll

TASKSET = "buffer.explorer_input.taskset"


def table(scene: Scene) -> Path:
    """A database with the table `tasks`."""
    database = scene.folder / "tasks.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE tasks (id INTEGER PRIMARY KEY, question TEXT, answer TEXT)")
        rows = [(number, f"{number}+1=", str(number + 1)) for number in range(20)]
        connection.executemany("INSERT INTO tasks VALUES (?, ?, ?)", rows)
    return database


@pytest.mark.e2e
def test_the_file_of_a_table_goes_after_the_last_experiment_that_reads_it(embedded_scene: Scene) -> None:
    scene = embedded_scene
    sql = (f"{TASKSET}.storage_type=sql", f"{TASKSET}.path=sqlite:///{table(scene)}", f"{TASKSET}.name=tasks")
    for name in ("one", "two"):
        scene.submit(EXPERIMENT, *SHORT, *sql, f"name={name}")
        assert scene.until_ended(name).experiment.summary.state == "completed"
    (file,) = (scene.folder / "checkpoints" / ".tables").rglob("*.jsonl")

    def removed(name: str) -> None:
        """Removes an experiment and begins with a new daemon, long after the file was written."""
        assert scene.rftd("rm", name, "--yes").status == 0
        os.utime(file, ns=(0, 0))
        restarts = scene.host.restarts
        scene.kill("daemon", name)
        poll(lambda: (scene.host.tend(), scene.host.restarts)[1] > restarts)

    removed("one")
    assert file.exists(), "the other one reads it"
    removed("two")
    poll(lambda: not file.exists())
    said = scene.rftd("logs", "--daemon", "-n", "10000", "-o", "jsonl").out
    assert said.count("no experiment reads it") == 1


@pytest.mark.e2e
def test_the_doctor_reads_the_table_and_keeps_nothing(embedded_scene: Scene) -> None:
    scene = embedded_scene
    of_file = "name: sums\n      path: ./train.jsonl"
    text = EXPERIMENT.replace(of_file, "name: tasks\n      storage_type: sql\n      path: sqlite:///DB")
    scene.write(text.replace("DB", str(table(scene))))
    said = scene.rftd("doctor", "exp.yaml")
    assert (said.status, "none failed" in said.out) == (0, True), said
    assert not (scene.folder / "checkpoints").exists()
    scene.write(text.replace("DB", "/gone.db"))
    said = scene.rftd("doctor", "exp.yaml")
    assert said.status == 1
    assert "the table 'tasks' cannot be read" in " ".join(said.out.split())
