"""The points of a run: steps once, evaluations, remarks, and nothing of what has no effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.tracking.event_files import texts_of
from synthetic.tracking.tracked import follow

from rftd.ops.errors import ConfigError
from rftd.streams.events.experiment import CheckpointChosen, ExperimentPaused, StageStopped
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.tracking.cursor import CursorFile

pytestmark = pytest.mark.anyio


async def lines_of(folder: Path, run: SyntheticRun) -> list[dict[str, object]]:
    """The points of a run whose explorer and trainer share a file, in the order of its lines."""
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    await follow(log, run, TrackerSpec(kind="jsonl", single_run=True))
    (path,) = (folder / "monitor" / "jsonl").glob("points.*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_file_begins_with_the_experiment_and_its_configuration(tmp_path: Path) -> None:
    first, *_ = await lines_of(tmp_path, SyntheticRun(Recorder(), job_dir=str(tmp_path)).write())
    assert (first["project"], first["name"], first["config"]) == ("p", "small", {"name": "small"})
    assert len(str(first["digest"])) == 64


async def test_remarks_tell_the_life_of_a_run(tmp_path: Path) -> None:
    run = SyntheticRun(Recorder(), job_dir=str(tmp_path)).write()
    _, *points = await lines_of(tmp_path, run)
    remarks = [str(point["remark"]) for point in points if "remark" in point]
    for text in ("started", "stage warmup started", "stage rft started", "completed", "weights 3 published"):
        assert text in remarks
    assert "checkpoint global_step_2 saved" in remarks
    assert [point["number"] for point in points] == list(range(len(points)))


async def test_the_reason_why_a_tracker_ends_is_in_its_cursor(tmp_path: Path) -> None:
    run = SyntheticRun(Recorder(), job_dir=str(tmp_path)).write()
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    file = CursorFile(tmp_path, "jsonl", str(run.id)[:8])
    with pytest.raises(ConfigError, match="needs NO_SUCH_KEY"):
        await follow(log, run, TrackerSpec(kind="jsonl", variables={"api_key": "NO_SUCH_KEY"}))
    assert "needs NO_SUCH_KEY" in file.read().error
    file.path.unlink()
    await follow(log, run, TrackerSpec(kind="jsonl"))
    cursor = file.read()
    assert (cursor.error, cursor.step, cursor.ended) == ("", run.version, True)
    assert cursor.points > 10


async def test_weights_without_a_step_are_not_remarked(tmp_path: Path) -> None:
    run = SyntheticRun(Recorder(), job_dir=str(tmp_path)).write()  # announces a version that no step made
    _, *points = await lines_of(tmp_path, run)
    assert f"weights {run.version + 50} published" not in json.dumps(points)


def chosen(number: int, version: int, value: float, *kept: int) -> CheckpointChosen:
    """A choice of the stage's best checkpoint."""
    return CheckpointChosen(
        number=number, stage=1, version=version, generation=0, figure="eval/held/score", value=value, kept=kept
    )


async def test_what_evaluations_decided_is_remarked_once(tmp_path: Path) -> None:
    run = SyntheticRun(Recorder(), job_dir=str(tmp_path), faults=False)
    run.begin()
    run.warm_up()
    run.explore()
    stopped = StageStopped(
        stage=1, last_version=9, version=7, figure="eval/held/score", value=0.5, cause="patience", reason="no better"
    )
    first = chosen(1, 3, 0.5, 3)
    for event in (first, chosen(2, 3, 0.5, 3, 4), chosen(3, 5, 0.75, 5, 3), first, stopped, stopped):
        run.recorder.write(event, run.id)
    run.recorder.write(ExperimentPaused(reason="limits.hours: 2 of 2 hours spent", cause="budget"), run.id)
    _, *points = await lines_of(tmp_path, run)
    words = ("best", "stage ends", "paused")
    remarks = [(point["step"], text) for point in points if (text := str(point.get("remark"))).startswith(words)]
    assert remarks == [
        (3, "best checkpoint: version 3, eval/held/score 0.5"),
        (5, "best checkpoint: version 5, eval/held/score 0.75"),
        (run.version, "stage ends early with version 9: no better"),
        (run.version, "paused: budget: limits.hours: 2 of 2 hours spent"),
    ]


async def test_a_step_that_a_later_trainer_repeats_makes_one_point(tmp_path: Path) -> None:
    run = SyntheticRun(Recorder(), job_dir=str(tmp_path), faults=False)
    run.begin()
    run.warm_up()
    for _ in range(2):
        run.explore()
    run.train()
    run.version -= 1
    run.ahead.insert(0, run.batches[-1])
    run.complete(stage=1, items=8, generation=1)
    run.finish()
    _, *points = await lines_of(tmp_path, run)
    steps = [point["step"] for point in points if "figures" in point and point["run"] == "trainer"]
    assert steps == [1, 2, 3]


async def test_tensorboard_has_the_configuration_and_the_remarks_as_texts(tmp_path: Path) -> None:
    run = SyntheticRun(Recorder(), job_dir=str(tmp_path)).write()
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    await follow(log, run, TrackerSpec(kind="tensorboard"))
    (path,) = (tmp_path / "monitor" / "tensorboard" / "trainer").iterdir()
    texts = texts_of(path)
    assert ("config", 0, '```json\n{\n  "name": "small"\n}\n```') in texts
    assert ("remarks", 0, "started") in texts
    assert ("remarks", run.version, "completed") in texts


async def test_the_console_has_a_line_for_each_step_and_evaluation(tmp_path: Path) -> None:
    run = SyntheticRun(Recorder(), job_dir=str(tmp_path)).write()
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    await follow(log, run, TrackerSpec(kind="console"))
    (path,) = (tmp_path / "monitor" / "console").iterdir()
    first, *lines = path.read_text().splitlines()
    assert first == "p/small"
    assert any(line.endswith("step 1  loss 1") for line in lines)
    assert any(line.endswith("eval/held_out/score 0.75  eval/held_out/rows 4") for line in lines)
    assert [line for line in lines if line.endswith("  completed")]
