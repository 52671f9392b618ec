"""Stages and batches with rows of a dataset: a conversation beside experiences, pairs, and a row that is bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rftd.daemon.run.supervisor.preflight import preflight
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import partition_of
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, TasksetSpec
from rftd.workers.training.assembly import Assembly

pytestmark = pytest.mark.parametrize("log", ["sqlite"], indirect=True)

TALK = [
    {"role": "user", "content": "1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "3"},
    {"role": "assistant", "content": "4"},
]


def rows(path: Path, *records: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def only(spec: ExperimentSpec, dataset: TasksetSpec, kind: str) -> ExperimentSpec:
    """The first stage alone, on this dataset."""
    stage = msgspec.structs.replace(spec.stages[0], dataset=dataset, algorithm=AlgorithmSpec(kind=kind))
    return preflight(msgspec.structs.replace(spec, stages=(stage,)))


async def events_of(log: EventLog, experiment: Any) -> list[Any]:
    home = partition_of(topics.EXPERIMENTS, experiment)
    return [decode(record).event for record in await log.read(home, 0, max_records=10_000)]


@pytest.mark.anyio
async def test_conversations_of_an_expert_stand_beside_experiences(
    tmp_path: Path, log: EventLog, clock, ids, fake_world
) -> None:
    form = Format(messages_key="messages", enable_concatenated_multi_turn=True)
    talks = TasksetSpec(name="talks", path=rows(tmp_path / "talks.jsonl", {"messages": TALK}), format=form)
    spec = fake_world.spec(tmp_path, expert_rows=4, dataset=talks)
    state = await fake_world.completed(log, spec, clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    plans = [event for event in await events_of(log, state.experiment) if isinstance(event, BatchPlanned)]
    batch = await Assembly(log, spec).batch(plans[-1], 3)
    expert = [sample for sample in batch.samples if sample.expert]
    assert (len(batch.samples), len(expert)) == (16, 4)
    for sample in expert:
        assert bytes(int(t) for t in sample.tokens[sample.prompt_tokens :][sample.loss_mask == 1][:-1]) == b"2\n4\n"
        assert sample.loss_mask.tolist().count(0) == len("user: 3\nassistant: ")
        assert sample.logprobs is not None
        assert sample.advantages is not None
        assert not sample.logprobs.any()
        assert not sample.advantages.any()
        assert sample.pair == -1


@pytest.mark.anyio
async def test_a_row_of_preferences_is_two_samples(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> None:
    records = [{"prompt": f"{n}?", "chosen": "yes", "rejected": "no, never"} for n in range(6)]
    form = Format(prompt_type="raw")
    path = rows(tmp_path / "pairs.jsonl", *records)
    spec = only(fake_world.spec(tmp_path), TasksetSpec(name="p", path=path, format=form, schema="dpo"), "dpo")
    state = await fake_world.completed(log, spec, clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    events = await events_of(log, state.experiment)
    plans = [event for event in events if isinstance(event, BatchPlanned)]
    assert [len(plan.rows) for plan in plans] == [4, 4, 4]
    assert plans[1].rows[2].epoch == 1
    assert [event.items for event in events if isinstance(event, StepCompleted)] == [4, 4, 4]
    batch = await Assembly(log, spec).batch(plans[1], 0)
    assert [sample.pair for sample in batch.samples] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [sample.chosen for sample in batch.samples] == [True, False] * 4
    prompts = [bytes(int(t) for t in sample.tokens[: sample.prompt_tokens]) for sample in batch.samples]
    assert prompts == [b"4?", b"4?", b"5?", b"5?", b"0?", b"0?", b"1?", b"1?"]
    assert all(sample.logprobs is None and np.all(sample.loss_mask == 1) for sample in batch.samples)
    assert (await fake_world.verified(log)).clean


@pytest.mark.anyio
async def test_a_bad_row_ends_the_experiment_with_its_line_and_key(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rftd.daemon.run.supervisor.row_looks._SAMPLE_ROWS", 1)  # as if it were one of millions
    records: list[dict[str, Any]] = [{"prompt": "a", "chosen": "b", "rejected": "c"} for _ in range(6)]
    del records[5]["rejected"]
    path = rows(tmp_path / "pairs.jsonl", *records)
    form = Format(prompt_type="raw")
    spec = only(fake_world.spec(tmp_path), TasksetSpec(name="p", path=path, format=form, schema="dpo"), "dpo")
    state = await fake_world.completed(log, spec, clock, ids)
    assert (state.spine.status, state.spine.code) == (Status.FAILED, "RFTD-DAT-002")
    assert "no value under 'rejected'" in state.spine.reason
    assert f"{path}:6" in state.spine.reason
    assert state.spine.version == 1, "the batch before it was trained"


@pytest.mark.anyio
async def test_a_batch_of_40_000_rows_is_planned_and_trained(
    tmp_path: Path, log: EventLog, clock, ids, fake_world
) -> None:
    """Its plan names the dataset once, so that one record holds it."""
    spec = fake_world.spec(tmp_path)
    stage = msgspec.structs.replace(spec.stages[0], train_batch_size=40_000, total_steps=1)
    spec = preflight(msgspec.structs.replace(spec, stages=(stage,)))
    state = await fake_world.completed(log, spec, clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    [plan] = [event for event in await events_of(log, state.experiment) if isinstance(event, BatchPlanned)]
    assert len(plan.rows) == 40_000
    assert plan.rows[-1].epoch == 999
    assert plan.datasets == (spec.stages[0].dataset.digest,)
    assert (await fake_world.verified(log)).clean
