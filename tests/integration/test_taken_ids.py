"""Somebody else writes under ids that follow from what is in the log, before the worker whose work it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from synthetic.log.strangers_answer import strangers_answer

from rftd.ops.errors import CodecError
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.task import TaskLeased
from rftd.streams.folds.spine import Status
from rftd.streams.log.codec import Writer, decode
from rftd.streams.log.envelope import Draft, Position, Record
from rftd.streams.log.log import EventLog


def forged(leased: TaskLeased, rollout: int) -> ExperienceProduced:
    """An experience of a rollout, under the id that the worker's own has."""
    return strangers_answer(lease=leased.lease, group=leased.group, rollout=rollout, stage=leased.stage)


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
