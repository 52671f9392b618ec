"""A run keeps what its evaluations answered, with figures of several tries, where `rftd evals` finds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rftd.ops import limits
from rftd.storage.files.answered_rows import answered_rows
from rftd.storage.files.artifacts import ArtifactStore
from rftd.storage.queries.evaluations import ScorePlace
from rftd.streams.events.experience import EvalScored
from rftd.streams.events.step import EvalCompleted
from rftd.streams.events.task import EvalLeased
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import TOPICS, Partition
from rftd.streams.portable.export import OutsideNames
from rftd.streams.spec.spec import RolloutSpec, SamplingSpec

TRIES = 4


async def holders_of(log: EventLog) -> dict[UUID, UUID]:
    """The worker of each lease of held-out rows."""
    found: dict[UUID, UUID] = {}
    for number in range(TOPICS[topics.TASKS].partitions):
        for record in await log.read(Partition(topics.TASKS, number), 0, max_records=10_000):
            event = decode(record).event
            if isinstance(event, EvalLeased):
                found[event.lease] = event.worker
    return found


async def scores_of(log: EventLog) -> dict[int, list[ScorePlace]]:
    """The places of the scores of each version, by their rows."""
    found: dict[int, list[ScorePlace]] = {}
    for number in range(TOPICS[topics.EXPERIENCES].partitions):
        for record in await log.read(Partition(topics.EXPERIENCES, number), 0, max_records=10_000):
            event = decode(record).event
            if isinstance(event, EvalScored):
                place = ScorePlace(row_start=event.row_start, partition=number, offset=record.offset)
                found.setdefault(event.version, []).append(place)
    return {version: sorted(places, key=lambda place: place.row_start) for version, places in found.items()}


async def outside_of(log: EventLog) -> OutsideNames:
    """What the log's events name outside of it."""
    names = OutsideNames()
    for stream in (topics.EXPERIMENTS, topics.EXPERIENCES):
        for number in range(TOPICS[stream].partitions):
            for record in await log.read(Partition(stream, number), 0, max_records=10_000):
                names.take(record)
    return names


@pytest.mark.anyio
async def test_a_run_keeps_the_answers_of_its_evaluations(
    tmp_path: Path, log: EventLog, clock: Any, ids: Any, fake_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EVAL_CHUNK_ROWS", 5 * TRIES)
    engine = RolloutSpec(engine="fake", concurrency=8, max_timeout_s=20.0, engine_args={"skill": 0.5, "gain": 0.05})
    spec = fake_world.spec(tmp_path, rollout=engine)
    *before, rft = spec.stages
    sampling = SamplingSpec(max_tokens=8, temperature=1.0)
    held_out = msgspec.structs.replace(rft.evals[0], repeat_times=TRIES, reward="math_reward", sampling=sampling)
    spec = msgspec.structs.replace(spec, stages=(*before, msgspec.structs.replace(rft, evals=(held_out,))))
    state = await fake_world.completed(log, spec, clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)

    store = ArtifactStore(Path(spec.job_dir) / "artifacts")
    completed = {event.version: event for event in await _completed(log)}
    scores = await scores_of(log)
    holders = await holders_of(log)
    assert scores.keys() == completed.keys()
    for version, places in scores.items():
        assert [place.row_start for place in places] == [0, 5, 10]
        answered = await answered_rows(log, places, store, holders)
        assert (answered.notes, answered.rows()) == ([], list(range(12)))
        assert answered.kept == answered.answers.keys() == {(row, n) for row in range(12) for n in range(TRIES)}
        metrics = completed[version].metrics
        right = [answer.right for answer in answered.answers.values()]
        assert right == [answer.text == answer.truth for answer in answered.answers.values()]
        shares = [metrics[name] for name in ("accuracy/mean", "pass@1", "reward/accuracy/mean")]
        assert shares == pytest.approx([sum(right) / 48] * 3)
        solved = {row for (row, _), answer in answered.answers.items() if answer.right}
        assert metrics[f"pass@{TRIES}"] == pytest.approx(len(solved) / 12)
        assert metrics["score/low"] <= completed[version].score <= metrics["score/high"]
    strangers = dict.fromkeys(holders, next(iter(holders)))
    unknown = await answered_rows(log, scores[max(scores)], store, strangers)
    assert (len(unknown.answers), len(unknown.notes)) == (0, 3), "scores of who held no lease are nobody's"
    named = await outside_of(log)
    assert {path.name for path in store.root.glob("*/*")} == {digest.hex() for digest in named.artifacts}
    report = await fake_world.verified(log)
    assert report.clean, report.findings


async def _completed(log: EventLog) -> list[EvalCompleted]:
    events: list[EvalCompleted] = []
    for number in range(TOPICS[topics.EXPERIMENTS].partitions):
        records = await log.read(Partition(topics.EXPERIMENTS, number), 0, max_records=10_000)
        events += [event for record in records if isinstance(event := decode(record).event, EvalCompleted)]
    return events
