"""Sample tables of trackers with an artifact missing: its rows are left out, the others stay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import spec_of

from rftd.ops.logs import logger
from rftd.storage.files.artifacts import ArtifactStore
from rftd.streams.events.experience import EvalScored
from rftd.streams.figures.eval_answers import EvalAnswer, packed
from rftd.streams.log.arrays import Array
from rftd.streams.memory import MemoryLog
from rftd.workers.tracking.point import Point, SampleSource
from rftd.workers.tracking.samples import SampleReader

EXPERIMENT, EVALUATION = UUID(int=1), UUID(int=2)


def write_scores(recorder: Recorder, answers: Sequence[EvalAnswer], texts: Array) -> None:
    rewards = Array.of([answer.reward for answer in answers], "f4")
    event = EvalScored(
        eval=EVALUATION,
        lease=recorder.ids.new(),
        stage=0,
        taskset=0,
        row_start=answers[0].row,
        version=1,
        generation=0,
        rewards=rewards,
        tokens=Array.of([answer.tokens for answer in answers], "u4"),
        answers=texts,
    )
    recorder.write(event, EXPERIMENT, key=EVALUATION, source="explorer/a")


@pytest.mark.anyio
async def test_a_missing_artifact_leaves_out_its_rows_alone(tmp_path: Path) -> None:
    recorder = Recorder()
    store = ArtifactStore(tmp_path / "artifacts")
    for row in range(2):
        answers = [EvalAnswer(row=row, reward=float(row), prompt=f"prompt {row}", text=f"answer {row}")]
        content = packed(answers)
        stored = Array("u1", (len(content),), b"", artifact=store.put(content))
        write_scores(recorder, answers, stored)
        if row == 0:
            store.path_of(stored.artifact).unlink()
    log = MemoryLog()
    for draft in recorder.drafts:
        await log.append([draft])
    reader = SampleReader(log, spec_of("run", 1), 8, folder=tmp_path, starts={}, logger=logger())
    source = SampleSource(places=(), evaluation=EVALUATION, rows=2, score=0.5)
    point = await reader.with_samples(
        Point(role="explorer", number=0, row=0, step=1, time_ns=0, table="held-out", source=source)
    )
    assert [(sample.row, sample.answer) for sample in point.samples] == [(1, "answer 1")]
