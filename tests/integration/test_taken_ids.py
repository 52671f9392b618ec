"""Somebody else writes under ids that follow from what is in the log, before the worker whose work it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from rftd.ops.errors import CodecError
from rftd.streams.arrays import Array
from rftd.streams.codec import Writer, decode
from rftd.streams.envelope import Draft, Position, Record
from rftd.streams.events.experience import ExperienceProduced, Span
from rftd.streams.events.task import TaskLeased
from rftd.streams.folds.spine import Status
from rftd.streams.log import EventLog
from rftd.workers.rollout.leased import experience_ids, rollout_ids


def forged(leased: TaskLeased, rollout: int) -> ExperienceProduced:
    """An experience of a rollout, under the id that the worker's own has."""
    [id] = experience_ids(rollout_ids(leased.group, [rollout]))
    return ExperienceProduced(
        experience=id,
        group=leased.group,
        rollout=rollout,
        stage=leased.stage,
        lease=leased.lease,
        tokens=Array.of([1, 2, 3, 4], "u4"),
        prompt_tokens=2,
        loss_mask=Array.of([1, 1], "u1"),
        logprobs=Array.of([-1.0, -1.0], "f4"),
        spans=(Span(0, 0, 0, 2),),
        reward=1000.0,
    )


@pytest.mark.anyio
async def test_an_experience_counts_although_its_ids_were_taken(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(source="stranger", clock=clock, ids=ids)
    append = log.append
    taken: set[bytes] = set()

    async def appended(drafts: Sequence[Draft]) -> list[Position]:
        """The drafts, each lease after the stranger's answers to it."""
        for draft in drafts:
            try:
                decoded = decode(Record(draft.partition, 0, b"", draft.head, draft.value))
            except CodecError:
                continue
            if isinstance(decoded.event, TaskLeased):
                events = [forged(decoded.event, rollout) for rollout in decoded.event.rollouts]
                experiment = decoded.head.experiment
                answers = [
                    writer.draft(event, experiment=experiment, key=event.group, id=event.experience) for event in events
                ]
                taken.update(event.experience.bytes for event in events)
                await append(answers)
        return await append(drafts)

    monkeypatch.setattr(log, "append", appended)
    run = await fake_world.run(log, fake_world.spec(tmp_path), clock, ids)
    async with asyncio.timeout(30):
        await run.drive()
    state = run.state
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    assert taken
    report = await fake_world.verified(log)
    assert {finding.rule for finding in report.findings} == {"answers-have-a-lease"}
    assert report.experiments[0].produced > 0
