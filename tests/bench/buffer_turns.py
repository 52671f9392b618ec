"""CPU of the folds and the planner for each experience of a replay buffer with a cooldown; prints JSON.

`buffer_turns.py [TICKS] [WAITING]`: the load of `buffer_cooldown` without log, sockets and payloads. In each tick of
10 ms as many experiences arrive, in closed groups of 8, as were read in it, in batches of 64, each of which uses
experiences for the first or the second time, a second apart; `WAITING` experiences lie there from the beginning.
Microseconds of one process, per experience that arrives or that is read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from uuid import UUID

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

import numpy as np
from figures import tell
from synthetic.worlds.desk import Desk, stage_of

from rftd.ops.cycles import tune_collector
from rftd.ops.ids import derive
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experience import ExperienceProduced, Span
from rftd.streams.events.registry import Event
from rftd.streams.events.step import StepCompleted
from rftd.streams.events.task import GroupClosed, Member
from rftd.streams.log import topics
from rftd.streams.log.arrays import Array
from rftd.streams.log.codec import decode
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.spec.spec import AlgorithmSpec, PolicySpec, PrioritySpec
from rftd.workers.control.planner import Planner

GROUP, BATCH = 8, 64
TICK_S, BATCHES_PER_TICK = 0.01, 0.55
GROUPS_PER_TICK = 7
COOLDOWN_S, USES = 1.0, 2


class Load:
    """A desk, and the CPU time that each part of the work took, in seconds."""

    def __init__(self) -> None:
        policy = PolicySpec(
            max_staleness_versions=64,
            bounded=False,
            max_inflight_batches=32,
            priority=PrioritySpec(kind="linear_decay"),
            max_uses=USES,
            cooldown_s=COOLDOWN_S,
        )
        self.desk = Desk(
            stage_of(
                total_steps=10**6,
                batch_size=BATCH // GROUP,
                train_batch_size=BATCH,
                algorithm=AlgorithmSpec(kind="grpo", repeat_times=GROUP),
                policy=policy,
            )
        )
        self.planner = Planner(self.desk.state)
        self.took_s: dict[str, float] = {}
        self.arrived = self.read = 0
        self._sequence = 0
        self._array = Array.of(np.ones(8), "u1")

    def timed(self, part: str, work: Callable[[], Sequence[Event]]) -> Sequence[Event]:
        """Does it, and adds what it took."""
        began_s = time.process_time()
        found = work()
        self.took_s[part] = self.took_s.get(part, 0.0) + time.process_time() - began_s
        return found

    def fold(self, part: str, events: Iterable[tuple[Event, UUID | None, Partition | None]]) -> None:
        """Writes them, and measures how long the folds take."""
        recorder, decoded = self.desk.recorder, list[Decoded]()
        for event, key, partition in events:
            place = recorder.write(event, self.desk.id, key=key, partition=partition)
            self.desk.positions[place.partition] = place.offset + 1
            decoded.append(decode(recorder.records[-1]))
        recorder.records.clear()
        recorder.drafts.clear()

        def apply() -> Sequence[Event]:
            for each in decoded:
                self.desk.state.apply(each)
            return ()

        self.timed(part, apply)

    def arrive(self, groups: int) -> None:
        """So many groups are produced and closed."""
        produced, closed = list[ExperienceProduced](), list[GroupClosed]()
        version = max(self.desk.state.spine.version, 0)
        for _ in range(groups):
            group = derive(self.desk.id, "group", 0, self._sequence)
            events = [self._event(group, rollout, version) for rollout in range(GROUP)]
            members = tuple(
                Member(each.experience, each.rollout, 0, 8 * self._sequence, 1.0, 0.0, 8, version, version)
                for each in events
            )
            closed.append(GroupClosed(group=group, sequence=self._sequence, stage=0, members=members, failed=0))
            produced += events
            self._sequence += 1
        self.arrived += len(produced)
        self.fold("fold experience.produced", ((each, each.group, None) for each in produced))
        tasks = partition_of(topics.TASKS, self.desk.id)
        self.fold("fold group.closed", ((each, None, tasks) for each in closed))

    def decide(self) -> None:
        """The planner's turn, and what it wrote."""
        desk = self.desk
        events = self.timed("decide", lambda: self.planner.decide(desk.positions, desk.recorder.clock.now_ns()).events)
        self.fold("fold batch.planned", ((event, None, None) for event in events))

    def train(self) -> None:
        """The next step, if its batch was planned."""
        spine = self.desk.state.spine
        if (plan := spine.plans.get(spine.version + 1)) is None:
            return
        assert isinstance(plan.event, BatchPlanned)
        done = StepCompleted(
            batch=plan.event.batch,
            step=plan.event.step,
            stage=0,
            generation=0,
            checksum="c",
            items=BATCH,
            tokens=1,
            duration_s=0.1,
        )
        self.read += len(plan.event.experiences)
        self.fold("fold step.completed", [(done, None, None)])

    def _event(self, group: UUID, rollout: int, version: int) -> ExperienceProduced:
        return ExperienceProduced(
            experience=derive(group, "rollout", rollout, "experience"),
            group=group,
            rollout=rollout,
            stage=0,
            lease=group,
            tokens=self._array,
            prompt_tokens=1,
            loss_mask=self._array,
            logprobs=self._array,
            spans=(Span(version, 0, 0, 8),),
            reward=1.0,
        )


def main(ticks: int, waiting: int) -> None:
    """Prints microseconds."""
    tune_collector()
    load, due = Load(), 0.0
    load.arrive(waiting // GROUP)
    for tick in range(ticks + 200):
        if tick == 200:  # by then the first ones have rested
            load.took_s.clear()
            load.arrived = load.read = 0
        load.arrive(GROUPS_PER_TICK)
        load.decide()
        load.decide()  # there is a turn after one that wrote something
        due += BATCHES_PER_TICK
        while due >= 1:
            load.train()
            due -= 1
        load.desk.recorder.clock.advance(TICK_S)
    replay_buffer = load.desk.state.replay_buffer
    per = {part: load.arrived if part.endswith(("produced", "closed")) else load.read for part in load.took_s}
    figures = {
        "arrived": load.arrived,
        "read": load.read,
        "waiting": len(replay_buffer.waiting),
        "cooling": len(replay_buffer.cooling),
        "us_per_experience": {part: round(took_s / per[part] * 1e6, 2) for part, took_s in load.took_s.items()},
    }
    tell(figures)


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(*(given + [1000, 8_000][len(given) :]))
