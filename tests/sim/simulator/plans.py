"""What each batch had to be made of, given what its planner had read: another reading of the policies' promises."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from rftd.streams.events.batch import BatchPlanned, ExperienceRetired
from rftd.streams.folds.replay_buffer import BufferEntry, ReplayBuffer
from rftd.streams.folds.run_state import RunState
from rftd.streams.log import topics
from rftd.streams.log.envelope import Decoded
from rftd.streams.spec.spec import StageSpec
from rftd.workers.control.policies.paced import Paced
from rftd.workers.control.policies.priorities import make_priority
from rftd.workers.control.policies.registry import make_policy
from simulator.readings import effective

if TYPE_CHECKING:
    from simulator.world import World


class Planned(NamedTuple):
    """A plan of explored experiences, and where its planner had read to."""

    plan: BatchPlanned
    stage: StageSpec
    offset: int
    seen: dict[tuple[str, int], int]
    """Per partition, the offset after the last one."""

    @property
    def oldest_allowed(self) -> int:
        """The oldest version that an experience of it may have begun with."""
        return self.plan.step - 1 - self.stage.policy.max_staleness_versions

    def knew(self, decoded: Decoded) -> bool:
        """True if its planner had read the event."""
        place = decoded.partition
        return decoded.offset < self.seen.get((place.stream, place.number), 0)


def ranked(world: World) -> Iterator[str]:
    """A batch is what ranks first: the group of the highest priority, then the one that closed first, in its order."""
    events = list(effective(world, topics.EXPERIMENTS, topics.TASKS))
    for planned in _plans(world, events):
        policy = make_policy(planned.stage.policy)
        if type(policy).order is not Paced.order:
            continue
        replay_buffer = ReplayBuffer()
        for each in events:
            # A plan knows what was planned and retired before it in the same decision, which nobody had read yet.
            earlier = isinstance(each.event, BatchPlanned | ExperienceRetired) and each.offset < planned.offset
            if planned.knew(each) or earlier:
                replay_buffer.apply(each)
        first = [entry.member.experience for entry in _in_order(planned, replay_buffer)]
        found = [item.experience for item in planned.plan.experiences]
        if found != first[: len(found)]:
            yield f"step {planned.plan.step} trains {_short(found)}, and what ranks first is {_short(first)}"


def _in_order(planned: Planned, replay_buffer: ReplayBuffer) -> Iterator[BufferEntry]:
    policy = planned.stage.policy
    priority = make_priority(policy.priority)
    groups: dict[UUID, list[BufferEntry]] = {}
    for entry in chain(replay_buffer.waiting.values(), replay_buffer.cooling.values()):
        if entry.stage == planned.plan.stage and entry.eligible_at_ns <= planned.plan.decided_at_ns:
            groups.setdefault(entry.group.group, []).append(entry)
    for entries in sorted(groups.values(), key=lambda each: (-max(map(priority, each)), each[0].group.offset)):
        for entry in sorted(entries, key=lambda each: each.index):
            if not policy.bounded or entry.member.oldest_version >= planned.oldest_allowed:
                yield entry


def patient(world: World) -> Iterator[str]:
    """No batch is formed under `wait` while a group is under way that would be too old for the one after it."""
    if not any(stage.policy.args.get("wait") for stage in world.spec.stages):
        return
    events = list(effective(world))
    for planned in _plans(world, events):
        if not planned.stage.policy.args.get("wait"):
            continue
        state = RunState(world.experiment)
        for each in events:
            if planned.knew(each):
                state.apply(each)
        since_ns = max(state.spine.decided_at_ns, state.spine.stage_started_ns)
        if planned.plan.decided_at_ns - since_ns >= planned.stage.max_read_timeout_s * 1e9:
            continue
        for group in state.groups.open.values():
            if group.sequence < 0 or group.terminal or not group.leases:
                continue
            began = max(group.min_version, min(lease.held_version for lease in group.leases.values()))
            if began <= planned.oldest_allowed:
                yield f"step {planned.plan.step} did not wait for group {group.sequence}, begun on version {began}"


def _plans(world: World, events: list[Decoded]) -> Iterator[Planned]:
    """Each once, however often the log has it."""
    found: set[UUID] = set()
    for each in events:
        plan = each.event
        if isinstance(plan, BatchPlanned) and plan.experiences and plan.batch not in found:
            found.add(plan.batch)
            seen = {(place.stream, place.partition): place.next_offset for place in plan.observed}
            yield Planned(plan, world.spec.stages[plan.stage], each.offset, seen)


def _short(experiences: list[UUID]) -> str:
    return " ".join(str(each)[-6:] for each in experiences)
