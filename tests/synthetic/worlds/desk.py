"""One experiment's folded state, and a log on a table that feeds it: for tests of those who decide on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

import numpy as np
from synthetic.log.recorder import Recorder

from rftd.ops.ids import derive
from rftd.streams.events import experience, experiment, step, worker
from rftd.streams.events.registry import Event
from rftd.streams.events.task import GroupClosed, TaskLeased
from rftd.streams.events.weights import WeightsPublished
from rftd.streams.folds.run_state import RunState
from rftd.streams.log import topics
from rftd.streams.log.arrays import Array
from rftd.streams.log.codec import decode
from rftd.streams.log.decision import Decision
from rftd.streams.log.envelope import Position, Record
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.group_id import group_id
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import (
    AlgorithmSpec,
    ExperimentSpec,
    ModelSpec,
    PolicySpec,
    RolloutSpec,
    StageSpec,
    TasksetSpec,
)
from rftd.workers.control.closing import close_groups

REPEAT, BATCH = 4, 8


def stage_of(**changes: Any) -> StageSpec:
    """A GRPO stage: groups of 4, batches of 8, ten steps, staleness of at most 2."""
    fields: dict[str, Any] = {
        "name": "rft",
        "kind": "both",
        "total_steps": 10,
        "batch_size": BATCH // REPEAT,
        "train_batch_size": BATCH,
        "algorithm": AlgorithmSpec(kind="grpo", repeat_times=REPEAT),
        "model": ModelSpec(path="none", max_model_len=64, max_prompt_tokens=16, max_response_tokens=48),
        "taskset": TasksetSpec(name="tasks", path="none", rows=7, max_retry_times=1),
        "policy": PolicySpec(max_staleness_versions=2, max_inflight_batches=3),
        "synchronizer": Synchronizer(sync_method="checkpoint", sync_style="fully_async"),
        "rollout": RolloutSpec(max_timeout_s=20.0),
    }
    return StageSpec(**fields | changes)


def published(version: int) -> WeightsPublished:
    """The announcement of one version of generation 0."""
    return WeightsPublished(
        version=version,
        generation=0,
        stage=0,
        method="checkpoint",
        path="",
        manifest="m",
        checksum=f"c{version}",
        size_bytes=1,
    )


def lease_of(group: UUID, **changes: Any) -> TaskLeased:
    """The first lease of a group with all its rollouts."""
    fields: dict[str, Any] = {
        "lease": derive(group, "lease", changes.get("attempt", 1)),
        "slot": 0,
        "worker": UUID(int=2),
        "group": group,
        "sequence": 0,
        "stage": 0,
        "row": 0,
        "epoch": 0,
        "rollouts": tuple(range(REPEAT)),
        "repeat_times": REPEAT,
        "attempt": 1,
        "deadline_s": 50.0,
        "min_version": 0,
    }
    return TaskLeased(**fields | changes)


def scores_of(rewards: Sequence[Any], **changes: Any) -> experience.EvalScored:
    """The scores of the first held-out rows with the base model, one token each."""
    fields: dict[str, Any] = {
        "eval": UUID(int=1),
        "lease": UUID(int=2),
        "stage": 0,
        "taskset": 0,
        "row_start": 0,
        "version": 0,
        "generation": 0,
        "rewards": Array.of(rewards, "f4"),
        "tokens": Array.of([1] * len(rewards), "u4"),
    }
    return experience.EvalScored(**fields | changes)


class Desk:
    """Events go in one by one; `state` is what the roles decide on."""

    def __init__(
        self,
        stage: StageSpec | None = None,
        *later: StageSpec,
        on_sign_of_life: Callable[[worker.Heartbeat | worker.WorkerStarted], None] | None = None,
    ) -> None:
        """The first stage has begun; those `later` begin as a test says (`next_stage`)."""
        self.recorder = Recorder()
        self.id = self.recorder.ids.new()
        self.state = RunState(self.id, on_sign_of_life=on_sign_of_life)
        self.positions: dict[Partition, int] = {}
        self._fences = FenceView()
        spec = ExperimentSpec(project="p", name="n", job_dir="/jobs", stages=(stage or stage_of(), *later), config={})
        self.put(experiment.ExperimentSubmitted(spec=spec))
        self.put(experiment.ExperimentAccepted(start=()))
        self.put(experiment.ExperimentStarted())
        self.put(step.GenerationStarted(generation=0, version=0))
        self.publish(0)
        self.put(experiment.StageStarted(stage=0, name="rft", first_version=0))

    def put(self, event: Event, *, key: UUID | None = None, partition: Partition | None = None) -> Position:
        """Writes an event and folds it."""
        before = len(self.recorder.records)
        place = self.recorder.write(event, self.id, key=key, partition=partition)
        for record in self.recorder.records[before:]:
            self.fold(record)
        self.positions[place.partition] = place.offset + 1
        return place

    def fold(self, record: Record) -> None:
        """Folds a record, if it has an effect."""
        decoded = decode(record)
        if self._fences.admit(record.partition, decoded.head, decoded.event):
            self.state.apply(decoded)

    def fence(self, role: str) -> None:
        """A new owner takes a role on the spine."""
        before = len(self.recorder.records)
        self.recorder.fence(role, self.id, partition_of(topics.EXPERIMENTS, self.id))
        for record in self.recorder.records[before:]:
            self.fold(record)

    def obey(self, decisions: Iterable[Decision | Event]) -> list[Event]:
        """Writes what a role decided; returns the events."""
        done: list[Event] = []
        for each in decisions:
            event, partition = each if isinstance(each, Decision) else (each, None)
            if isinstance(event, GroupClosed):
                partition = partition_of(topics.TASKS, self.id)
            self.put(event, partition=partition)
            done.append(event)
        return done

    def join(self, slot: int = 0, capacity: int = 64) -> UUID:
        """An explorer."""
        id = self.recorder.ids.new()
        started = worker.WorkerStarted(
            worker=id, role="explorer", slot=slot, host="h", pid=1, process_start_s=1.0, capacity=capacity
        )
        self.put(started, key=id)
        return id

    def publish(self, version: int) -> None:
        """Weights that can be loaded."""
        self.put(published(version))

    def produce(
        self,
        lease: TaskLeased,
        rollouts: Iterable[int],
        *,
        version: int = 0,
        priority: float = 0.0,
        duration_s: float = 0.0,
        spread: float = 0.0,
    ) -> None:
        """Some of the lease's rollouts succeed."""
        for rollout in rollouts:
            produced = experience.ExperienceProduced(
                experience=derive(lease.group, "rollout", rollout, "experience"),
                group=lease.group,
                rollout=rollout,
                stage=lease.stage,
                lease=lease.lease,
                tokens=Array.of([1, 2, 3], "u4"),
                prompt_tokens=1,
                loss_mask=Array.of([1, 1], "u1"),
                logprobs=Array.of(np.array([-1.0, -1.0]), "f4"),
                spans=(experience.Span(version, 0, 0, 2),),
                reward=1.0 + spread * rollout,
                priority=priority,
                duration_s=duration_s,
            )
            self.put(produced, key=lease.group)

    def fail(self, lease: TaskLeased, rollout: int) -> None:
        """One rollout fails."""
        error = experience.RolloutFailed(
            group=lease.group, rollout=rollout, stage=lease.stage, lease=lease.lease, code="RFTD-WRK-003", reason="no"
        )
        self.put(error, key=lease.group)

    def lease(
        self, sequence: int, worker_id: UUID, *, slot: int = 0, attempt: int = 1, held_version: int = -1
    ) -> TaskLeased:
        """A lease, as the dispatcher writes it."""
        group = group_id(self.id, 0, sequence)
        leased = lease_of(
            group,
            slot=slot,
            worker=worker_id,
            sequence=sequence,
            row=sequence,
            attempt=attempt,
            held_version=held_version,
        )
        self.put(leased, partition=Partition(topics.TASKS, slot))
        return leased

    def supply(self, groups: int, *, version: int = 0, priority: float = 0.0, spread: float = 0.0) -> None:
        """The desk gets so many closed groups of full size; each reward is larger than the one before by `spread`."""
        for _ in range(groups):
            sequence = self.state.groups.next_sequence.get(0, 0)
            lease = self.lease(sequence, self.id)
            self.produce(lease, range(REPEAT), version=version, priority=priority, spread=spread)
        self.obey(close_groups(self.state, stage_over=False))

    def next_stage(self) -> None:
        """The stage under way is over, and the next one begins."""
        spine = self.state.spine
        self.put(experiment.StageCompleted(stage=spine.stage, last_version=spine.version))
        self.put(experiment.StageStarted(stage=spine.stage + 1, name="next", first_version=spine.version))

    def execute(self) -> int:
        """The trainer's next step; returns it."""
        spine = self.state.spine
        plan = spine.plans[spine.version + 1].event
        done = step.StepCompleted(
            batch=plan.batch,
            step=plan.step,
            stage=plan.stage,
            generation=0,
            checksum=f"c{plan.step}",
            items=len(plan.experiences),
            tokens=1,
            duration_s=0.1,
        )
        self.put(done)
        return plan.step
