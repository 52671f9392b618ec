"""Trackers show the text of rollouts and of evaluation answers: each table once, whenever their process dies."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.tracking.tracked import Deaths, answered, expected, follow, follow_and_die, shown_by

from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.tracking import samples

pytestmark = pytest.mark.anyio
SAMPLED = TrackerSpec(kind="jsonl", samples=3, sample_interval=4)


class Numbers:
    """A tokenizer whose text of an id is its number."""

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return " ".join(str(token) for token in tokens)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyntheticRun:
    """A run of two SFT and twelve RFT steps, each with an evaluation whose answers are kept."""
    monkeypatch.setattr(samples, "stage_decoder", lambda stage: Numbers())
    return answered(tmp_path)


def tables_in(folder: Path) -> list[dict[str, Any]]:
    """The tables that the tracker has written, in order."""
    paths = sorted((folder / "monitor" / "jsonl").glob("*.jsonl"))
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [line for line in lines if "table" in line]


async def planned_rollouts(log: EventLog, run: SyntheticRun, step: int) -> list[ExperienceProduced]:
    """The experiences of a step's batch, as its plan names them."""
    records = await log.read(run.spine, 0, max_records=10_000)
    events = [decode(record).event for record in records]
    plan = next(event for event in events if isinstance(event, BatchPlanned) and event.step == step)
    rollouts = []
    for item in plan.experiences:
        [record] = await log.read(Partition(topics.EXPERIENCES, item.partition), item.offset, max_records=1)
        event = decode(record).event
        assert isinstance(event, ExperienceProduced)
        rollouts.append(event)
    return rollouts


async def test_every_step_asked_for_and_every_evaluation_has_a_table(
    run: SyntheticRun, log: EventLog, tmp_path: Path
) -> None:
    await log.append(run.recorder.drafts)
    await follow(log, run, SAMPLED)
    tables = tables_in(tmp_path)
    rollouts = {table["step"]: table["rows"] for table in tables if table["table"] == "samples/rollouts"}
    assert list(rollouts) == [4, 8, 12]
    planned = await planned_rollouts(log, run, 8)
    texts = {Numbers().decode(event.tokens.view().tolist()[3:]): event for event in planned}
    for row in rollouts[8]:
        event = texts[row["answer"]]
        assert row["prompt"] == Numbers().decode(event.tokens.view().tolist()[:3])
        assert (row["reward"], row["finish"]) == (event.reward, event.finish)
    answers = {table["step"]: table["rows"] for table in tables if table["table"] == "samples/eval/held_out"}
    assert list(answers) == list(range(3, 15))
    assert len(answers[5]) == 3
    for row in answers[5]:
        right = row["row"] != 5 % 4
        assert (row["prompt"], row["reward"], row["truth"]) == (
            f"{row['row']}+{row['row']}=",
            float(right),
            str(2 * row["row"]),
        )
    assert any(row["reward"] == 0 for row in answers[5]), "the worst answer is among them"
    assert shown_by("jsonl", tmp_path / "monitor" / "jsonl") == await expected("jsonl", run, log)


async def test_a_follower_that_dies_twenty_times_shows_each_table_once(
    run: SyntheticRun, log: EventLog, tmp_path: Path
) -> None:
    deaths = Deaths(random.Random(4).sample(range(1, 60), 20))
    await follow_and_die(log, run, SAMPLED, deaths)
    assert deaths.count == 20
    names = [(table["table"], table["step"]) for table in tables_in(tmp_path)]
    assert len(names) == len(set(names)) == 3 + 12


async def test_texts_that_are_gone_hold_up_no_figure(
    run: SyntheticRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the model's folder, with its tokenizer, is not there
    for path in (tmp_path / "artifacts").rglob("*"):
        if path.is_file():
            path.unlink()
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    await follow(log, run, SAMPLED)
    assert tables_in(tmp_path) == []
    assert shown_by("jsonl", tmp_path / "monitor" / "jsonl") == await expected("jsonl", run, log)


async def test_nothing_that_a_model_writes_marks_up_the_table(
    run: SyntheticRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Numbers, "decode", lambda self, tokens, special=False: "<script>|\n# `a`")
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    await follow(log, run, TrackerSpec(kind="tensorboard", samples=1, sample_interval=4))
    written = b"".join(path.read_bytes() for path in (tmp_path / "monitor" / "tensorboard").rglob("events*"))
    assert b"| row | prompt | answer | reward | tokens | finish | truth |" in written
    assert b"&#60;script&#62;&#124;<br>&#35; &#96;a&#96;" in written
    assert b"<script>" not in written
