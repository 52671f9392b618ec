"""Selects 512 groups from 100,000 waiting experiences, with priorities, uses and a cooldown; prints JSON.

`select_many.py [EXPERIENCES] [PAYLOAD_KIB] [PLANS]`: the events of so many experiences of 64 KiB are
encoded, decoded and folded one group after the other, as a planner reads them from a log; none is kept. Then so many
batches of 512 groups of 8 are planned and executed. `select` is the policy's choice; `decide` is the planner's whole
turn: what changed since its last one goes into the pool, what is stale is looked for, and the plan is made.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

import psutil
from figures import quantiles, tell
from synthetic.worlds.desk import Desk, lease_of, stage_of

from rftd.ops.cycles import tune_collector
from rftd.ops.ids import derive
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experience import ExperienceProduced, Span
from rftd.streams.events.task import GroupClosed
from rftd.streams.log import topics
from rftd.streams.log.arrays import Array
from rftd.streams.log.group_id import group_id
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.spec.spec import AlgorithmSpec, PolicySpec, PrioritySpec
from rftd.workers.control.planner import Planner
from rftd.workers.control.policies.bounded import HardBound

GROUP, GROUPS = 8, 512
COOLDOWN_S, STEP_S = 30.0, 5.0
VERSIONS = 64


class Stopwatch:
    """Times of each call of `HardBound.select`, in seconds."""

    def __init__(self) -> None:
        self.took_s: list[float] = []
        select = HardBound.select

        def timed(*arguments: Any) -> Any:
            began_s = time.perf_counter()
            chosen = select(*arguments)
            self.took_s.append(time.perf_counter() - began_s)
            return chosen

        HardBound.select = timed  # type: ignore[method-assign]


def fill(desk: Desk, experiences: int, payload_bytes: int) -> int:
    """Writes and folds closed groups of experiences with random priorities; returns the bytes that went by."""
    random = np.random.default_rng(0)
    tokens = Array.of(random.integers(0, 150_000, payload_bytes // 4), "u4")
    few = Array.of(np.zeros(8), "f4")
    passed = 0
    for sequence in range(experiences // GROUP):
        group = group_id(desk.id, 0, sequence)
        leased = lease_of(group, sequence=sequence, row=sequence, rollouts=tuple(range(GROUP)), repeat_times=GROUP)
        desk.put(leased, partition=Partition(topics.TASKS, 0))
        version = sequence * VERSIONS // max(1, experiences // GROUP)
        for rollout in range(GROUP):
            event = ExperienceProduced(
                experience=derive(group, "rollout", rollout, "experience"),
                group=group,
                rollout=rollout,
                stage=0,
                lease=leased.lease,
                tokens=tokens,
                prompt_tokens=payload_bytes // 4 - 8,
                loss_mask=Array.of(np.ones(8), "u1"),
                logprobs=few,
                spans=(Span(version, 0, 0, 8),),
                reward=float(rollout % 2),
                priority=float(random.integers(0, 8)),
            )
            desk.put(event, key=group)
        passed += sum(len(record.value) for record in desk.recorder.records)
        members = tuple(desk.state.groups.open[group].members.values())
        closed = GroupClosed(group=group, sequence=sequence, stage=0, members=members, failed=0)
        desk.put(closed, partition=partition_of(topics.TASKS, desk.id))
        desk.recorder.records.clear()
        desk.recorder.drafts.clear()
    return passed


def plan(desk: Desk, plans: int) -> tuple[list[float], int]:
    """Seconds of each of the planner's turns, and experiences planned."""
    planner, turns_s, planned = Planner(desk.state), [], 0
    planner.decide(desk.positions, desk.recorder.clock.now_ns())  # makes the pool
    for _ in range(plans):
        desk.recorder.clock.advance(STEP_S)
        began_s = time.perf_counter()
        events = planner.decide(desk.positions, desk.recorder.clock.now_ns()).events
        turns_s.append(time.perf_counter() - began_s)
        for event in desk.obey(events):
            assert isinstance(event, BatchPlanned), event
            planned += len(event.experiences)
            desk.execute()
        desk.recorder.records.clear()
        desk.recorder.drafts.clear()
    return turns_s, planned


def main(experiences: int, payload_kib: int, plans: int) -> None:
    """Prints times and memory, of a process whose collector is tuned as a daemon's."""
    tune_collector()
    batch = min(GROUPS * GROUP, experiences // 4)
    desk = Desk(
        stage_of(
            total_steps=10**6,
            batch_size=batch // GROUP,
            train_batch_size=batch,
            algorithm=AlgorithmSpec(kind="grpo", repeat_times=GROUP),
            policy=PolicySpec(
                max_staleness_versions=10**6,
                max_inflight_batches=10**6,
                priority=PrioritySpec(kind="linear_decay"),
                max_uses=0,
                cooldown_s=COOLDOWN_S,
            ),
        )
    )
    process = psutil.Process()
    before_bytes = process.memory_info().rss
    passed = fill(desk, experiences, payload_kib * 1024)
    waiting = len(desk.state.replay_buffer.waiting)
    watch = Stopwatch()
    turns_s, planned = plan(desk, plans)
    figures = {
        "experiences": waiting,
        "groups_selected": batch // GROUP,
        "plans": plans,
        "planned": planned,
        "cooling_at_the_end": len(desk.state.replay_buffer.cooling),
        "select_ms": quantiles([1e3 * took_s for took_s in watch.took_s], 0.5, 0.95, digits=3),
        "decide_ms": quantiles([1e3 * turn_s for turn_s in turns_s], 0.5, 0.95, digits=3),
        "payloads_gib": round(passed / 2**30, 3),
        "memory_before_mib": round(before_bytes / 2**20, 1),
        "memory_mib": round(process.memory_info().rss / 2**20, 1),
    }
    tell(figures)


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(*(given + [100_000, 64, 100][len(given) :]))
