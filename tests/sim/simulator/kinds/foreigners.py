"""Writers that are no part of the run: they answer leases of others and play its roles, and it counts for nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rftd.ops.ids import derive
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experience import EvalScored, ExperienceProduced, Span
from rftd.streams.events.experiment import ExperimentFailed, Fence
from rftd.streams.events.task import GroupClosed
from rftd.streams.log import topics
from rftd.streams.log.arrays import Array
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Draft
from rftd.streams.log.topics import partition_of
from rftd.streams.memory import MemoryLog
from rftd.streams.verify.report import BrokenPromise
from rftd.workers.rollout.leased import experience_ids, rollout_ids
from simulator.kinds.kind import Kind
from simulator.readings import effective

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World

FOREIGNER: Final = "foreigner"
"""The source of what they write."""


def foreign_records_count_for_nothing(world: World) -> Iterator[str]:
    """No closed group has a member that a foreigner wrote."""
    if Foreigners.name not in world.scenario.extras:
        return
    written = {
        (decoded.partition.number, decoded.offset)
        for decoded in effective(world, topics.EXPERIENCES)
        if decoded.head.source == FOREIGNER
    }
    for decoded in effective(world, topics.TASKS):
        if not isinstance(decoded.event, GroupClosed):
            continue
        for member in decoded.event.members:
            if (member.partition, member.offset) in written:
                yield f"group {decoded.event.group} closed with an experience of a foreigner's"


def is_of_foreigner(finding: BrokenPromise) -> bool:
    """True for a finding of `rftd verify` that names a foreigner as the writer."""
    return repr(FOREIGNER) in finding.what


class Foreigners(Kind):
    """Each answers every rollout and every held-out row that is under way, and writes as each role, at some moments."""

    name: ClassVar[str] = "foreigner"
    share: ClassVar[float] = 0.15
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies", "served")
    oracles = (foreign_records_count_for_nothing,)

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """The moments at which they write."""
        return sorted(chance.uniform(0.5, min(scenario.calm_s, 40.0)) for _ in range(chance.randint(1, 5)))

    def begin(self, world: World, plot: Any) -> None:
        """Spawns a task for each moment."""
        for at_s in plot:
            world.process.spawn(self._write(world, at_s))

    async def _write(self, world: World, at_s: float) -> None:
        await asyncio.sleep(at_s)
        while not (drafts := list(_answers(world))):
            if world.over(world.state):
                return
            await asyncio.sleep(0.1)
        drafts += _as_roles(world)
        await MemoryLog.append(world.log, drafts)
        world.chaos.hits[self.name] += len(drafts)
        world.tell(f"FOREIGN {len(drafts)} answers, ends, plans and fences")


def _as_roles(world: World) -> Iterator[Draft]:
    """The end of the experiment and a plan under the present epochs of their roles, and a fence of each role."""
    writer = Writer(source=FOREIGNER, clock=world.clock, ids=world.ids)
    spine = partition_of(topics.EXPERIMENTS, world.experiment)
    step = world.state.spine.planned + 1
    plan = BatchPlanned(batch=world.ids.new(), step=step, stage=0, observed=(), decided_at_ns=world.clock.now_ns())
    ended = ExperimentFailed(code="X", reason="a foreigner says so")
    epochs = {role: world.epoch(role) for role in ("controller", "planner", "dispatcher", "trainer")}
    for role, event in (("controller", ended), ("planner", plan)):
        yield writer.under(role=role, epoch=epochs[role]).draft(event, experiment=world.experiment)
    for role, epoch in epochs.items():
        fence = Fence(role=role, epoch=epoch + 1, previous=epoch, owner=world.ids.new())
        yield writer.under(role=role, epoch=epoch + 1).draft(fence, experiment=world.experiment, partition=spine)


def _answers(world: World) -> Iterator[Draft]:
    """An answer to each lease that is under way."""
    world.observe()
    writer = Writer(source=FOREIGNER, clock=world.clock, ids=world.ids)
    state = world.state
    for lease in sorted(state.groups.leases.values(), key=lambda lease: lease.id):
        missing = state.groups.open[lease.group].left_of(lease)
        for rollout, id in zip(missing, experience_ids(rollout_ids(lease.group, missing)), strict=True):
            produced = ExperienceProduced(
                experience=id,
                group=lease.group,
                rollout=rollout,
                stage=state.groups.open[lease.group].stage,
                lease=lease.id,
                tokens=Array.of([1, 2, 3, 4], "u4"),
                prompt_tokens=2,
                loss_mask=Array.of([1, 1], "u1"),
                logprobs=Array.of([-1.0, -1.0], "f4"),
                spans=(Span(0, 0, 0, 2),),
                reward=1000.0,
            )
            yield writer.draft(produced, experiment=world.experiment, key=lease.group)
    for id, evaluation in sorted(state.evals.open.items()):
        for leased in evaluation.leases.values():
            rows = leased.row_end - leased.row_start
            scored = EvalScored(
                eval=id,
                lease=derive(leased.lease, "foreign") if rows % 2 else leased.lease,
                stage=leased.stage,
                taskset=leased.taskset,
                row_start=leased.row_start,
                version=leased.version,
                generation=leased.generation,
                rewards=Array.of([1000.0] * rows, "f4"),
                tokens=Array.of([2] * rows, "u4"),
            )
            yield writer.draft(scored, experiment=world.experiment, key=id)
