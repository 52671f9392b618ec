"""Rollouts of one experiment as a Parquet file, and the same file as the taskset of the next one; a report of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from synthetic.daemon.hostile_texts import faults_of
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    with scene.host:
        yield scene


def test_exported_rollouts_are_the_taskset_of_the_next_experiment(scene: Scene) -> None:
    first = scene.submit(EXPERIMENT, *SHORT)
    books = scene.until_ended(first).experiment.books
    said = scene.rftd("experiences", "export", first, "-o", "rollouts.parquet")
    assert said.status == 0, said.err
    table = pq.read_table(scene.folder / "rollouts.parquet").to_pylist()
    assert len(table) == books.produced + books.late
    assert f"wrote {len(table)} rollouts" in said.out
    for row in table:
        assert row["prompt"].endswith("=")
        assert row["truth"]
        assert row["response"] is not None
        assert row["versions"][0]["start"] == 0
        assert {part["by"] for part in row["parts"]} == {"model"}
    best = scene.rftd("experiences", "export", first, "-o", "best.parquet", "--reward", ">0.5", "-n", "5")
    assert best.status == 0, best.err
    assert {row["reward"] for row in pq.read_table(scene.folder / "best.parquet").to_pylist()} == {1.0}
    again = scene.rftd("experiences", "export", first, "-o", "best.parquet")
    assert again.status != 0
    assert "exists already" in again.err
    prompts = (
        "buffer.explorer_input.taskset.path=./rollouts.parquet",
        "buffer.explorer_input.taskset.format={prompt_type: raw, prompt_key: prompt, response_key: truth}",
    )
    second = scene.submit(EXPERIMENT, *SHORT, *prompts, "name=second")
    assert scene.until_ended(second).experiment.summary.state == "completed"
    report = scene.rftd("report", second)
    assert report.status == 0, report.err
    page = (scene.folder / f"{second}.html").read_text()
    assert faults_of(page) == []
    assert table[0]["prompt"] in page
