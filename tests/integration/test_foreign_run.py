"""A stranger forges experiences, fences and plans of a run under way: its weights are those of an undisturbed run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from synthetic.log.strangers_answer import strangers_answer

from rftd.daemon.run.supervisor.run import Run
from rftd.ops.clock import Clock
from rftd.ops.ids import Ids
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experiment import Fence
from rftd.streams.events.task import TaskLeased
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer, decode
from rftd.streams.log.effective import effective
from rftd.streams.log.envelope import Draft, Position, Record
from rftd.streams.log.fencing import FenceView, Role
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import partition_of
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.spec import PolicySpec

ROLES = ("controller", "planner", "dispatcher", "trainer")


class Stranger:
    """A program with the right to write, which answers each lease of others as it is given and plays the roles."""

    def __init__(self, log: EventLog, run: Run, clock: Clock, ids: Ids) -> None:
        self.written: list[str] = []
        """The places of its records."""
        self._log = log
        self._run = run
        self._ids = ids
        self._writer = Writer(source="stranger", clock=clock, ids=ids)
        self._append = log.append

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        """Appends the run's own drafts; beside leases, an answer to each, a plan and a fence of each role's epoch."""
        positions = await self._append(drafts)
        decoded = [decode(Record(draft.partition, 0, b"", draft.head, draft.value)) for draft in drafts]
        leases = [record.event for record in decoded if isinstance(record.event, TaskLeased)]
        if leases:
            forged = [*self._answers(leases), *[draft async for draft in self._as_roles()]]
            self.written += map(str, await self._append(forged))
        return positions

    def _answers(self, leases: Iterable[TaskLeased]) -> Iterator[Draft]:
        for leased in leases:
            for rollout in leased.rollouts:
                produced = strangers_answer(lease=leased.lease, group=leased.group, rollout=rollout, stage=leased.stage)
                yield self._writer.draft(produced, experiment=self._run.state.experiment, key=leased.group)

    async def _as_roles(self) -> AsyncIterator[Draft]:
        experiment = self._run.state.experiment
        spine = partition_of(topics.EXPERIMENTS, experiment)
        fences = FenceView()
        for record in await self._log.read(spine, 0, max_records=10_000):
            effective(record, fences)
        for role in ROLES:
            epoch = fences.epoch(spine, Role(experiment, role))
            if role == "planner" and epoch:
                step = self._run.state.spine.planned + 1
                plan = BatchPlanned(batch=self._ids.new(), step=step, stage=1, observed=(), decided_at_ns=0)
                yield self._writer.under(role=role, epoch=epoch).draft(plan, experiment=experiment)
            fence = Fence(role=role, epoch=epoch + 1, previous=epoch, owner=self._ids.new())
            yield self._writer.under(role=role, epoch=epoch + 1).draft(fence, experiment=experiment, partition=spine)


def checksums(state: RunState) -> list[str]:
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    return [state.spine.checksums[version, 0] for version in range(1, 9)]


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_run_beside_a_stranger_makes_the_weights_of_an_undisturbed_run(
    tmp_path: Path, log: EventLog, clock: Clock, ids: Ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = fake_world.fixed(1, 0) | {
        "policy": PolicySpec(kind="in_order", max_staleness_versions=0, max_inflight_batches=1)
    }
    for name in ("alone", "disturbed"):
        (tmp_path / name).mkdir()
    undisturbed = await fake_world.completed(MemoryLog(), fake_world.spec(tmp_path / "alone", **fixed), clock, ids)
    run = await fake_world.run(log, fake_world.spec(tmp_path / "disturbed", **fixed), clock, ids)
    stranger = Stranger(log, run, clock, ids)
    monkeypatch.setattr(log, "append", stranger.append)
    async with asyncio.timeout(120):
        await run.drive()
    assert checksums(run.state) == checksums(undisturbed)
    report = await fake_world.verified(log)
    assert any(place.startswith(topics.EXPERIENCES) for place in stranger.written)
    whats = [finding.what for finding in report.findings]
    assert all("'stranger'" in what for what in whats), [what for what in whats if "'stranger'" not in what]
    assert sum(report.left_out.values()) + len(whats) == len(stranger.written), "each is named, or counted"
    assert report.experiments[0].steps == 8
