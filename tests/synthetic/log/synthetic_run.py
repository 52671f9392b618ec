"""A small complete experiment, event by event, as the real roles would write it, with the things that go wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np
from synthetic.log.eval_lease import eval_lease
from synthetic.log.eval_texts import eval_completed, eval_texts
from synthetic.log.recorder import Recorder

from rftd.ops.ids import derive
from rftd.storage.files.artifacts import ArtifactStore
from rftd.streams.events import batch, checkpoint, experience, experiment, step, task, weights, worker
from rftd.streams.log import topics
from rftd.streams.log.announcement import announcement_digest
from rftd.streams.log.arrays import Array
from rftd.streams.log.group_id import group_id
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, StageSpec

REPEAT = 4
SFT_STEPS = 2


def spec_of(name: str, rft_steps: int, job_dir: str = "/jobs") -> ExperimentSpec:
    """Two SFT steps, then GRPO."""
    model = ModelSpec(path="/model", max_model_len=64, max_prompt_tokens=16, max_response_tokens=48)
    sft = StageSpec(
        name="warmup",
        kind="train",
        total_steps=SFT_STEPS,
        batch_size=4,
        train_batch_size=4,
        algorithm=AlgorithmSpec(kind="sft"),
        model=model,
    )
    rft = StageSpec(
        name="rft",
        kind="both",
        total_steps=rft_steps,
        batch_size=2,
        train_batch_size=2 * REPEAT,
        algorithm=AlgorithmSpec(kind="grpo", repeat_times=REPEAT),
        model=model,
    )
    return ExperimentSpec(
        project="p", name=name, job_dir=job_dir, stages=(sft, rft), config={"name": name}, warnings=("nccl ignored",)
    )


@dataclass
class Member:
    """A produced experience and its group."""

    member: task.Member
    group: UUID
    index: int


@dataclass
class SyntheticRun:
    """Writes one experiment to a recorder; `waiting` are the experiences of closed groups that no batch has taken."""

    recorder: Recorder
    name: str = "small"
    steps: int = 3
    seed: int = 0
    faults: bool = True
    job_dir: str = "/jobs"
    artifacts: ArtifactStore | None = None
    """A store for the texts of evaluations; without one they are not kept."""
    repeat: int = REPEAT
    """The rollouts of each group."""
    spec: ExperimentSpec | None = None
    """A specification in place of the usual one."""
    tokenizers: tuple[str, ...] = ()
    """The copies of tokenizers named by the acceptance."""
    figures: dict[str, float] = field(default_factory=dict)
    """Figures that every step has beside its own."""
    duration_s: float = 0.0
    """The duration of every rollout."""
    parent: UUID | None = None
    """The parent of a fork, whose two SFT steps it shares."""
    id: UUID = field(init=False)
    waiting: list[Member] = field(default_factory=list)
    closed_at: dict[UUID, tuple[int, int]] = field(default_factory=dict)
    batches: list[UUID] = field(default_factory=list)
    ahead: list[UUID] = field(default_factory=list)
    workers: list[UUID] = field(default_factory=list)
    version: int = 0
    announced: bytes | None = None
    """The digest of the newest announcement of weights."""
    groups: int = 0
    lease: UUID = field(init=False)
    """The last lease that was given."""

    def write(self) -> SyntheticRun:
        """The whole run."""
        self.begin()
        self.warm_up()
        for _ in range(self.steps):
            self.explore()
            self.explore()
            self.train()
        if self.faults:
            self.go_wrong()
        self.finish()
        return self

    def warmed_up(self) -> SyntheticRun:
        """The run once its dataset stage is over, and one group waits."""
        self.begin()
        self.warm_up()
        self.explore()
        return self

    def begin(self) -> None:
        """Submitted, fenced, accepted, started, workers there."""
        recorder = self.recorder
        self.random = np.random.default_rng(self.seed)
        self.id = recorder.ids.new()
        self.spine = partition_of(topics.EXPERIMENTS, self.id)
        spec = self.spec or spec_of(self.name, self.steps, self.job_dir)
        recorder.write(experiment.ExperimentSubmitted(spec=spec), self.id)
        if self.parent is not None:
            forked = experiment.ExperimentForked(
                parent=self.parent,
                at_step=SFT_STEPS,
                checksum="shared",
                stage=0,
                first_versions=(0,),
                decided_at_ns=5,
                next_sequence=4 * SFT_STEPS,
            )
            recorder.write(forked, self.id)
        for role in ("controller", "planner", "trainer", "dispatcher"):
            recorder.fence(role, self.id, self.spine)
        for slot in range(topics.TOPICS[topics.TASKS].partitions):
            recorder.fence("dispatcher", self.id, Partition(topics.TASKS, slot))
        for stream in (topics.WEIGHTS, topics.CHECKPOINTS):
            recorder.fence("trainer", self.id, partition_of(stream, self.id))
        accepted = experiment.ExperimentAccepted(start=(), tokenizers=self.tokenizers)
        recorder.write(accepted, self.id, role="controller")
        recorder.write(experiment.ExperimentStarted(), self.id, role="controller")
        for number, role in enumerate(("explorer", "explorer", "trainer")):
            self.workers.append(recorder.ids.new())
            started = worker.WorkerStarted(
                worker=self.workers[-1],
                role=role,
                slot=number if role == "explorer" else -1,
                host="h",
                pid=100 + number,
                process_start_s=1.5,
                capacity=8,
            )
            recorder.write(started, self.id, key=self.workers[-1])

    def warm_up(self) -> None:
        """The SFT stage: two batches of rows, one checkpoint."""
        recorder = self.recorder
        if self.parent is not None:
            self.inherit()
            return
        recorder.write(step.GenerationStarted(generation=0, version=0), self.id, role="trainer")
        self.publish(0)
        recorder.write(experiment.StageStarted(stage=0, name="warmup", first_version=0), self.id, role="controller")
        for number in range(SFT_STEPS):
            rows = tuple(batch.RowItem(0, row, 0) for row in range(4 * number, 4 * number + 4))
            self.plan(stage=0, rows=rows)
            self.complete(stage=0, items=4)
        self.commit(stage=0, final=True)
        recorder.write(experiment.StageCompleted(stage=0, last_version=SFT_STEPS), self.id, role="controller")
        recorder.write(
            experiment.StageStarted(stage=1, name="rft", first_version=SFT_STEPS), self.id, role="controller"
        )
        self.publish(0)

    def inherit(self) -> None:
        """A fork's beginning: the shared weights are its first generation, and the RFT stage starts from them."""
        self.version = SFT_STEPS
        started = step.GenerationStarted(
            generation=0, version=SFT_STEPS, checkpoint="/parent/global_step_2", checksum="shared"
        )
        self.recorder.write(started, self.id, role="trainer")
        start = experiment.StageStarted(stage=1, name="rft", first_version=SFT_STEPS)
        self.recorder.write(start, self.id, role="controller")
        self.publish(0)

    def explore(self, *, failed: int = 0) -> UUID:
        """One group: leased, rolled out, closed; the last `failed` rollouts fail."""
        recorder, slot = self.recorder, self.groups % 2
        group = group_of(self.id, self.groups)
        self.lease = lease = recorder.ids.new()
        leased = task.TaskLeased(
            lease=lease,
            slot=slot,
            worker=self.workers[slot],
            group=group,
            sequence=self.groups,
            stage=1,
            row=self.groups,
            epoch=0,
            rollouts=tuple(range(self.repeat)),
            repeat_times=self.repeat,
            attempt=1,
            deadline_s=60.0,
            min_version=self.version,
        )
        recorder.write(leased, self.id, role="dispatcher", partition=Partition(topics.TASKS, slot))
        members = [self.produce(group, rollout, lease) for rollout in range(self.repeat - failed)]
        for rollout in range(self.repeat - failed, self.repeat):
            error = experience.RolloutFailed(
                group=group, rollout=rollout, stage=1, lease=lease, code="RFTD-WRK-003", reason="too\x00late"
            )
            recorder.write(error, self.id, key=group)
        closed = task.GroupClosed(
            group=group, sequence=self.groups, stage=1, members=tuple(members), failed=failed, busy_ms=len(members)
        )
        place = recorder.write(closed, self.id, role="dispatcher")
        self.closed_at[group] = (place.partition.number, place.offset)
        self.waiting += [Member(member, group, index) for index, member in enumerate(members)]
        self.groups += 1
        return group

    def produce(self, group: UUID, rollout: int, lease: UUID, *, source: str = "") -> task.Member:
        """One experience; without a `source` the holder of the lease writes it, and under the id that it derives."""
        length = int(self.random.integers(4, 12))
        reward = float(self.random.integers(0, 2))
        id = derive(derive(group, "rollout", rollout), "experience")
        produced = experience.ExperienceProduced(
            experience=id,
            group=group,
            rollout=rollout,
            stage=1,
            lease=lease,
            tokens=Array.of(self.random.integers(0, 99, 3 + length), "u4"),
            prompt_tokens=3,
            loss_mask=Array.of(np.ones(length), "u1"),
            logprobs=Array.of(-np.ones(length), "f4"),
            processed_logprobs=Array.of(-0.5 * np.ones(length), "f4"),
            spans=(experience.Span(self.version, 0, 0, length),),
            sampling=(experience.SamplingSpan(0, length, 1.0, 0.95, -1, (("min_p", 0.1),)),),
            reward=reward,
            metrics={"accuracy": reward},
            duration_s=self.duration_s,
        )
        place = self.recorder.write(produced, self.id, key=group, id=None if source else id, source=source)
        number = place.partition.number
        return task.Member(id, rollout, number, place.offset, reward, 0.0, 3 + length, self.version, self.version)

    def plan(
        self,
        *,
        stage: int,
        rows: tuple[batch.RowItem, ...] = (),
        take: int = 0,
        epoch: int | None = None,
        again: Sequence[Member] = (),
        use: int = 1,
        max_uses: int = 1,
    ) -> UUID:
        """A plan of the next step, of rows or of the oldest waiting experiences, or of some `again`."""
        taken = again or self.waiting[:take]
        groups = list(dict.fromkeys(entry.group for entry in taken))
        id = self.recorder.ids.new()
        planned = batch.BatchPlanned(
            batch=id,
            step=self.version + len(self.ahead) + 1,
            stage=stage,
            rows=rows,
            datasets=("d" * 64,) if rows else (),
            experiences=tuple(
                batch.ExperienceItem(
                    entry.member.experience,
                    entry.member.partition,
                    entry.member.offset,
                    groups.index(entry.group),
                    entry.index,
                    self.version - entry.member.oldest_version,
                    use,
                )
                for entry in taken
            ),
            groups=tuple(batch.GroupRef(group, *self.closed_at[group]) for group in groups),
            observed=(),
            decided_at_ns=self.recorder.clock.now_ns(),
            max_uses=max_uses,
            eligible_at_ns=self.recorder.clock.now_ns() + 5 if max_uses != 1 else 0,
        )
        self.recorder.write(planned, self.id, role="planner", epoch=epoch)
        if epoch is None:
            self.batches.append(id)
            self.ahead.append(id)
            del self.waiting[:take]
        return id

    def complete(self, *, stage: int, items: int, generation: int = 0) -> None:
        """The next step, of the oldest batch that is planned."""
        self.version += 1
        completed = step.StepCompleted(
            batch=self.ahead.pop(0),
            step=self.version,
            stage=stage,
            generation=generation,
            checksum=f"c{self.version}.{generation}",
            items=items,
            tokens=items * 7,
            duration_s=0.25,
            metrics={"loss": 1.0 / self.version, "bad": float("nan"), **self.figures},
            announced=self.announced,
        )
        self.recorder.write(completed, self.id, role="trainer")

    def publish(self, generation: int, *, version: int | None = None) -> None:
        """Announces the newest version (or one that no step made)."""
        version = self.version if version is None else version
        published = weights.WeightsPublished(
            version=version,
            generation=generation,
            stage=1,
            method="checkpoint",
            path=f"/w/{version}",
            manifest=f"m{version}",
            checksum=f"c{version}.{generation}",
            size_bytes=1000,
        )
        self.recorder.write(published, self.id, role="trainer")
        self.announced = announcement_digest(published)
        for id in self.workers[:2]:
            activated = weights.WeightsActivated(
                worker=id,
                version=version,
                generation=generation,
                manifest=f"m{version}",
                checksum=f"c{version}.{generation}",
                duration_s=0.1,
            )
            self.recorder.write(activated, self.id)

    def commit(self, *, stage: int, final: bool) -> None:
        """A checkpoint of the newest version."""
        committed = checkpoint.CheckpointCommitted(
            step=self.version,
            generation=0,
            stage=stage,
            stage_step=self.version,
            path=f"/jobs/global_step_{self.version}",
            files=(checkpoint.FileRef("model.safetensors", 10, "s" * 64),),
            size_bytes=10,
            checksum=f"c{self.version}.0",
            sha256="s" * 64,
            final=final,
        )
        self.recorder.write(committed, self.id, role="trainer")

    def train(self) -> None:
        """One RFT step and an evaluation of it."""
        self.plan(stage=1, take=2 * REPEAT)
        self.complete(stage=1, items=2 * REPEAT)
        self.publish(0)
        self.evaluate()

    def evaluate(self) -> None:
        """An evaluation of the newest version."""
        lease, eval_id = self.recorder.ids.new(), derive(self.id, "eval", self.version)
        leased = eval_lease(eval_id, self.workers[0], self.version, lease=lease)
        # One row is wrong, in each version another one.
        rewards = [float(row != self.version % 4) for row in range(4)]
        self.recorder.write(leased, self.id, partition=Partition(topics.TASKS, 0))
        scored = experience.EvalScored(
            eval=eval_id,
            lease=lease,
            stage=1,
            taskset=0,
            row_start=0,
            version=self.version,
            generation=0,
            rewards=Array.of(rewards, "f4"),
            tokens=Array.of([5, 6, 7, 8], "u4"),
            right=Array.of(rewards, "u1"),
            answers=None if self.artifacts is None else eval_texts(rewards, self.artifacts),
        )
        self.recorder.write(scored, self.id, key=eval_id)
        self.recorder.write(eval_completed(eval_id, self.version), self.id, role="dispatcher")

    def go_wrong(self) -> None:
        """A failed rollout, a late one, a retirement, an abandoned batch, zombies, an announcement without a step."""
        recorder = self.recorder
        group = self.explore(failed=1)
        self.late = self.produce(group, REPEAT, self.lease).experience
        stale = self.waiting.pop()
        retired = batch.ExperienceRetired(
            experiences=(stale.member.experience,), reason="stale", uses=0, decided_at_ns=recorder.clock.now_ns()
        )
        recorder.write(retired, self.id, role="planner")
        back = list(self.waiting)
        abandoned = self.plan(stage=1, take=len(back))
        gone = batch.BatchAbandoned(batch=abandoned, step=self.version + 1, code="X", reason="no")
        recorder.write(gone, self.id, role="planner")
        self.waiting, self.abandoned = back, self.batches.pop()
        self.ahead.pop()
        recorder.fence("planner", self.id, self.spine)
        self.zombie = self.plan(stage=1, take=len(back), epoch=1)
        self.publish(0, version=self.version + 50)
        recorder.write(
            worker.WorkerLost(worker=self.workers[0], role="explorer", slot=0, reason="killed"),
            self.id,
            key=self.workers[0],
        )

    def finish(self) -> None:
        """The last checkpoint, and the end."""
        self.commit(stage=1, final=True)
        self.recorder.write(experiment.StageCompleted(stage=1, last_version=self.version), self.id, role="controller")
        self.recorder.write(experiment.ExperimentCompleted(), self.id, role="controller")
        stopped = worker.WorkerStopped(worker=self.workers[2], role="trainer", slot=-1)
        self.recorder.write(stopped, self.id, key=self.workers[2])


def group_of(experiment: UUID, sequence: int) -> UUID:
    """The id of a group of the second stage."""
    return group_id(experiment, 1, sequence)
