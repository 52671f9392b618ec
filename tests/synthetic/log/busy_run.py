"""A run that is looked at before its end, and the fold of it, for the tests of folds."""

from __future__ import annotations

from uuid import UUID

import msgspec
from synthetic.log.eval_lease import eval_lease
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import REPEAT, SyntheticRun, group_of

from rftd.ops.ids import derive
from rftd.streams.events import batch, experience, task, weights, worker
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.arrays import Array
from rftd.streams.log.effective import effective, of_experiment
from rftd.streams.log.envelope import Record
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.topics import TASKS, Partition


class BusyRun(SyntheticRun):
    """A run in which leases expire and are given out anew, and which is looked at before its end."""

    def explore(self, *, failed: int = 0) -> UUID:
        """A group whose first lease may have expired in another slot."""
        group = group_of(self.id, self.groups)
        for attempt in range(int(self.random.integers(0, 3))):
            self._lease(group, self.groups, attempt + 1, expire=True)
        return super().explore(failed=failed)

    def finish(self) -> None:
        """The run gets work that is still under way: open groups, evaluations, a plan that is not executed."""
        self.reuse()
        for number in range(3):
            sequence = self.groups + number
            group = group_of(self.id, sequence)
            attempts = int(self.random.integers(1, 4))
            for attempt in range(attempts):
                lease = self._lease(group, sequence, attempt + 1, expire=attempt + 1 < attempts)
            if attempts > 1:
                self._lease(group, sequence, attempts + 1, expire=bool(number), rollouts=(0,), reissue=True)
            for rollout in range(int(self.random.integers(0, REPEAT))):
                self.answer_uninvited(group, rollout, lease)
                self.produce(group, rollout, lease)
        self.synchronise()
        self.plan(stage=1, take=min(len(self.waiting), REPEAT))
        if self.waiting:
            stale = self.waiting.pop().member.experience
            retired = batch.ExperienceRetired(experiences=(stale,), reason="stale", uses=0, decided_at_ns=7)
            self.recorder.write(retired, self.id, role="planner")
        self._evaluate()

    def answer_uninvited(self, group: UUID, rollout: int, lease: UUID) -> None:
        """Maybe a stranger answers the lease of another one, or a lease that nobody gave."""
        chance = self.random.random()
        if chance < 0.6:
            self.produce(group, rollout, lease if chance < 0.3 else derive(lease, "never given"), source="stranger")

    def reuse(self) -> None:
        """Experiences that are planned again and again, abandoned, retired, and tagged anew in between."""
        for number in range(int(self.random.integers(0, 4))):
            self.explore()
            taken, self.waiting = self.waiting[-REPEAT:], self.waiting[:-REPEAT]
            if self.random.random() < 0.5:
                self.prioritize(taken[0].group, float(number))
            for use in range(1, 4):
                again = taken[: int(self.random.integers(1, REPEAT + 1))] if use == 3 else taken
                id = self.plan(stage=1, again=again, use=use, max_uses=3)
                if self.random.random() < 0.4:
                    step = self.version + len(self.ahead)
                    given_up = batch.BatchAbandoned(batch=id, step=step, code="X", reason="no")
                    self.recorder.write(given_up, self.id, role="planner")
                    self.batches.pop()
                    self.ahead.pop()
                    break
                if self.random.random() < 0.5:
                    executed = self.ahead[0]
                    self.complete(stage=1, items=len(again))
                    if self.random.random() < 0.3:
                        late = batch.BatchAbandoned(batch=executed, step=self.version, code="X", reason="too late")
                        self.recorder.write(late, self.id, role="planner")
                if use < 3 and self.random.random() < 0.3:
                    used = tuple(entry.member.experience for entry in taken)
                    retired = batch.ExperienceRetired(experiences=used, reason="stale", uses=use, decided_at_ns=7)
                    self.recorder.write(retired, self.id, role="planner")
                    break

    def synchronise(self) -> None:
        """Explorers ask for weights, twice for one window, and do not wait for ever."""
        for window, number in ((1, 0), (2, 0), (2, 1)):
            asked = weights.WeightsRequested(stage=1, window=window, number=number, version=self.version)
            self.recorder.write(asked, self.id, role="dispatcher")
            if self.random.random() < 0.7:
                told = weights.WeightsAnswered(stage=1, window=window, number=number, version=self.version)
                self.recorder.write(told, self.id, role="trainer")
            else:
                late = weights.WeightsOverdue(
                    stage=1, window=window, wanted=-1, version=number - 1, waited_s=1.0, reason="late"
                )
                self.recorder.write(late, self.id, role="dispatcher")

    def prioritize(self, group: UUID, priority: float) -> None:
        """A group gets another tag."""
        changed = batch.ExperiencePrioritized(group=group, priority=priority, by="test")
        self.recorder.write(changed, self.id, role="controller")

    def _lease(
        self,
        group: UUID,
        sequence: int,
        attempt: int,
        *,
        expire: bool,
        rollouts: tuple[int, ...] = tuple(range(REPEAT)),
        reissue: bool = False,
    ) -> UUID:
        slot = int(self.random.integers(0, 4))
        lease = derive(group, "lease", attempt)
        leased = task.TaskLeased(
            lease=lease,
            slot=slot,
            worker=self.workers[0],
            group=group,
            sequence=sequence,
            stage=1,
            row=sequence,
            epoch=0,
            rollouts=rollouts,
            window=sequence // 2,
            place=sequence % 2,
            repeat_times=REPEAT,
            attempt=attempt,
            deadline_s=60.0,
            min_version=self.version,
            pinned=attempt == 1,
            reissue=reissue,
        )
        place = Partition(TASKS, slot)
        self.recorder.write(leased, self.id, role="dispatcher", partition=place)
        if expire:
            gone = bool(self.random.integers(0, 2))
            expired = task.TaskExpired(lease=lease, slot=slot, reason=f"attempt {attempt}", worker_gone=gone)
            self.recorder.write(expired, self.id, role="dispatcher", partition=place)
        return lease

    def _evaluate(self) -> None:
        """Two ranges: the first is leased twice and scored twice, the second is under way."""
        id = derive(self.id, "eval", "late")
        for slot, start, attempt in ((0, 0, 1), (1, 0, 2), (2, 4, 1)):
            leased = eval_lease(id, self.workers[0], self.version, row_start=start, attempt=attempt, slot=slot)
            self.recorder.write(leased, self.id, role="dispatcher", partition=Partition(TASKS, slot))
        for attempt in (1, 2):
            scored = experience.EvalScored(
                eval=id,
                lease=derive(id, 0, attempt),
                stage=1,
                taskset=0,
                row_start=0,
                version=self.version,
                generation=0,
                rewards=Array.of([attempt] * 4, "f4"),
                tokens=Array.of([5] * 4, "u4"),
            )
            self.recorder.write(scored, self.id, key=id, source="stranger")
            self.recorder.write(scored, self.id, key=id)


def fold(experiment: UUID, records: list[Record]) -> RunState:
    """A planner's fold of the records, made as the follower makes it."""
    state, fences = RunState(experiment), FenceView()
    state.touched = {}
    wanted = of_experiment(experiment)
    for record in records:
        decoded = effective(record, fences, wanted)
        if decoded is not None:
            state.apply(decoded)
    return state


def seen(state: RunState) -> dict[str, object]:
    """Everything that decisions rest on, without the order of what has none."""
    groups, replay_buffer, published = state.groups, state.replay_buffer, state.weights
    return {
        "spine": msgspec.structs.asdict(state.spine),
        "groups": groups.open,
        "leases": groups.leases,
        "positions": groups.next_sequence,
        "windows": (groups.windows, published.answer),
        "failures": (groups._short, groups._short_stage, groups.last_error),
        "recent": (groups.recent, groups.closed_in_stage, groups.recent_stage),
        "waiting": replay_buffer.waiting,
        "cooling": replay_buffer.cooling,
        "under way": replay_buffer._items,
        "books": replay_buffer.counts() | replay_buffer.books.retired,
        "failed": replay_buffer.books.failed_rollouts,
        "planned": replay_buffer.planned_in_stage,
        "counted": replay_buffer.group_sizes,
        "ahead": replay_buffer._ahead,
        "weights": (published.published, published.retired, published.activated, published.newest(state.spine)),
        "evals": state.evals.open,
        "workers": (state.roster.live, state.roster.gone),
        "checkpoints": state.checkpoints,
    }


def written(seed: int, steps: int, *, ended: bool, forked: bool = False) -> tuple[UUID, Recorder]:
    """A recorder with two experiments, and the id of the one that is folded; `forked` from the other one."""
    recorder = Recorder(seed)
    other = SyntheticRun(recorder, name="other", steps=1, seed=seed + 1).write()
    parent = other.id if forked else None
    run = (SyntheticRun if ended else BusyRun)(recorder, name="one", steps=steps, seed=seed, parent=parent).write()
    lost = worker.WorkerLost(worker=run.workers[1], role="explorer", slot=1, reason="killed")
    recorder.write(lost, run.id, key=run.workers[1])
    return run.id, recorder
