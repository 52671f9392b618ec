"""Whoever decides nothing says why, and it is so: any stage, policy and schedule, with workers that come and go."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.worlds.desk import REPEAT, Desk, scores_of, stage_of
from synthetic.worlds.hold_claims import Claims, denied

from rftd.daemon.run.why.answer import waits_of
from rftd.daemon.run.why.run_snapshot import RunSnapshot
from rftd.ops.errors import DataError
from rftd.streams.events.batch import ExperienceGivenUp
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.experiment import ExperimentPaused, ExperimentResumed
from rftd.streams.events.registry import Event
from rftd.streams.events.step import GenerationStarted, StepCompleted
from rftd.streams.events.task import EvalLeased, TaskLeased
from rftd.streams.events.weights import WeightsActivated, WeightsAnswered
from rftd.streams.events.worker import WorkerLost
from rftd.streams.folds.spine import Status
from rftd.streams.spec.schedule import checkpoint_due, publish_due
from rftd.streams.spec.sections import OverRollout, StragglerReissue, Synchronizer
from rftd.streams.spec.spec import (
    AlgorithmSpec,
    PolicySpec,
    RolloutSpec,
    StageSpec,
    TasksetSpec,
)
from rftd.workers.control.controller import Controller
from rftd.workers.control.deciders import LastDecided
from rftd.workers.control.dispatcher import Dispatcher
from rftd.workers.control.hold import obstacle_of_error
from rftd.workers.control.holds import Dispatched
from rftd.workers.control.liveness import Liveness
from rftd.workers.control.planner import Planner


class HoldWorld:
    """Raises AssertionError where a decider gives no reason, or one that is not so."""

    def __init__(self, stage: StageSpec, seed: int, *, calm: bool = False) -> None:
        """`calm`: nobody dies, pauses or gives anything up."""
        self.desk, self.stage = Desk(stage), stage
        self.random = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self._calm = calm
        self._now_s = 0.0
        self._leases: list[TaskLeased] = []
        self._evals: list[EvalLeased] = []
        self._liveness = Liveness(lost_after_s=1e9)
        self._controller = Controller(self.desk.state)
        self._planner = Planner(self.desk.state)
        self._dispatcher = Dispatcher(self.desk.state, self._liveness)
        self._said = LastDecided()

    def run(self, turns: int) -> Counter[str]:
        """The number of times that each kind of hold was seen."""
        actors = [self._control, self._dispatch, self._plan] * 2
        actors += [self._roll_out, self._roll_out, self._train, self._answer, self._score, self._join, self._activate]
        if not self._calm:
            actors += [self._interrupt]
        for _ in range(turns):
            self.random.choice(actors)()
            self._now_s += self.random.choice((0.1, 0.1, 5.0))
            self.desk.recorder.clock.advance(self.random.choice((0.0, 0.1, 5.0)))
            self._words()
        return self.seen

    def _look(self, events: list[Event], *holds: Any) -> None:
        """A decider's events and hold are looked at before any of them is written."""
        claims = Claims(self.desk.state, self.desk.recorder.clock.now_ns())
        for hold in holds:
            if hold is None:
                continue
            self.seen[type(hold).__name__] += 1
            assert not denied(hold, events), (hold, denied(hold, events))
            assert events or claims.true(hold), hold

    def _control(self) -> None:
        trouble = obstacle_of_error("planner", ZeroDivisionError()) if self._chance(0.02) else None
        said = self._controller.decide(trouble, now_ns=self.desk.recorder.clock.now_ns())
        self._said.controller = said
        assert bool(said.events) != (said.hold is not None), "the life of an experiment has one next event, or a hold"
        self._look(list(said.events), said.hold)
        self.desk.obey(said.events)

    def _plan(self) -> None:
        now_ns = self.desk.recorder.clock.now_ns()
        said = self._said.planner = self._planner.decide(self.desk.positions, now_ns)
        assert said.events or said.hold is not None
        self._look(list(said.events), said.hold)
        self.desk.obey(said.events)
        if said.hold is None:
            return
        now_ns = max(now_ns, self.desk.state.spine.recorded_ns)
        assert Claims(self.desk.state, now_ns).true(said.hold), (said.hold, "once its events are folded")
        again = self._planner.decide(self.desk.positions, now_ns)
        assert (list(again.events), again.hold) == ([], said.hold), "it said that there is no more, and why"

    def _dispatch(self) -> None:
        said = self._said.dispatcher = self._dispatcher.decide(self._now_s)
        assert said.decisions or said.hold is not None
        events = [decision.event for decision in said.decisions]
        self._look(events, said.hold, said.evaluation)
        self.desk.obey(said.decisions)
        self._leases += [event for event in events if isinstance(event, TaskLeased)]
        self._evals += [event for event in events if isinstance(event, EvalLeased)]
        plain = all(isinstance(event, TaskLeased) and not (event.alone or event.reissue) for event in events)
        if events and plain and said.hold is not None:
            again = self._dispatcher.decide(self._now_s)
            # A slow rollout of a group is leased a second time only once no other lease of the group is to be written.
            slow = [each for each in again.decisions if isinstance(each.event, TaskLeased) and each.event.reissue]
            assert again == Dispatched(slow, said.hold, said.evaluation), (
                said,
                again,
                "its leases are in what it says",
            )

    def _words(self) -> None:
        """Each hold has its words, whenever they are asked for."""
        scene = RunSnapshot(
            state=self.desk.state,
            said=self._said,
            liveness=self._liveness,
            now_s=self._now_s,
            now_ns=self.desk.recorder.clock.now_ns(),
        )
        untold = [wait for wait in waits_of(scene) if wait.role == "daemon"]
        assert not untold, untold

    def _roll_out(self) -> None:
        live = [lease for lease in self._leases if lease.lease in self.desk.state.groups.leases]
        self._leases = live
        for lease in self.random.sample(live, min(len(live), self.random.randint(1, 4))):
            group = self.desk.state.groups.open[lease.group]
            left = [rollout for rollout in group.missing if rollout in lease.rollouts]
            for rollout in left[: self.random.randint(1, 4)]:
                if self._chance(0.1):
                    self.desk.fail(lease, rollout)
                else:
                    version = max(lease.min_version, lease.held_version, 0)
                    self.desk.produce(lease, [rollout], version=version, duration_s=1.0, spread=0.5)

    def _train(self) -> None:
        spine = self.desk.state.spine
        plan = spine.plans.get(spine.version + 1)
        if plan is None or spine.status is not Status.RUNNING:
            return
        done = StepCompleted(
            batch=plan.event.batch,
            step=plan.event.step,
            stage=0,
            generation=spine.generation,
            checksum=f"c{plan.event.step}",
            items=len(plan.event.experiences),
            tokens=1,
            duration_s=0.1,
        )
        self.desk.put(done)
        if publish_due(self.stage, done.step):
            self.desk.publish(done.step)
        if checkpoint_due(self.stage, done.step) and self._chance(0.8):
            self._save(done.step)

    def _save(self, step: int) -> None:
        committed = CheckpointCommitted(
            step=step,
            generation=self.desk.state.spine.generation,
            stage=0,
            stage_step=step,
            path="p",
            files=(),
            size_bytes=1,
            checksum=f"c{step}",
            sha256="s",
        )
        self.desk.put(committed)

    def _answer(self) -> None:
        spine, weights = self.desk.state.spine, self.desk.state.weights
        request = spine.request
        if request is None or weights.answered(request):
            if spine.stage_completed is False and spine.version == spine.last_version and self._chance(0.3):
                self._save(spine.version)
            return
        if weights.of_version(spine.version, spine) is None:
            self.desk.publish(spine.version)
        self.desk.put(
            WeightsAnswered(stage=request.stage, window=request.window, number=request.number, version=spine.version)
        )

    def _score(self) -> None:
        if not self._evals:
            return
        lease = self._evals.pop(0)
        scores = scores_of(
            [1.0] * (lease.row_end - lease.row_start),
            eval=lease.eval,
            lease=lease.lease,
            taskset=lease.taskset,
            row_start=lease.row_start,
            version=lease.version,
            generation=lease.generation,
        )
        self.desk.put(scores, key=lease.eval)

    def _join(self) -> None:
        if len(self.desk.state.roster.explorers()) < 3 and self._chance(0.5):
            self.desk.join(self.random.randrange(3), capacity=self.random.choice((4, 16)))

    def _activate(self) -> None:
        """An explorer loads the newest weights."""
        state = self.desk.state
        newest, explorers = state.weights.newest(state.spine), state.roster.explorers()
        if newest is None or not explorers:
            return
        loaded = WeightsActivated(
            worker=self.random.choice(explorers).worker,
            version=newest.version,
            generation=newest.generation,
            manifest="m",
            checksum=newest.checksum,
            duration_s=0.1,
        )
        self.desk.put(loaded)

    def _interrupt(self) -> None:
        """Somebody pauses or resumes, an explorer dies, a trainer starts anew, an experience is given up."""
        state = self.desk.state
        spine, explorers = state.spine, state.roster.explorers()
        match self.random.randrange(8):
            case 0 if spine.status is Status.RUNNING:
                self.desk.put(ExperimentPaused(reason="look", cause=self.random.choice(("", "disk_full"))))
            case 1 | 2 | 3 if spine.status is Status.PAUSED:
                self.desk.put(ExperimentResumed())
            case 4 if explorers:
                gone = self.random.choice(explorers)
                lost = WorkerLost(worker=gone.worker, role="explorer", slot=gone.slot, reason="it died")
                self.desk.put(lost, key=gone.worker)
            case 5 if spine.generation >= 0 and self._chance(0.3):
                back = max(spine.first_version, spine.version - 1)
                self.desk.put(GenerationStarted(generation=spine.generation + 1, version=back))
            case 6 if state.replay_buffer.waiting:
                self.desk.put(
                    ExperienceGivenUp(experience=self._some(list(state.replay_buffer.waiting)), reason=DataError.code)
                )
            case _:
                pass

    def _some(self, ids: list[UUID]) -> UUID:
        return self.random.choice(ids)

    def _chance(self, odds: float) -> bool:
        return self.random.random() < odds


KINDS = ["hard_bound", "in_order", "areal", "verl_window", "windowed", "weight_fifo", "ready_first", "sample_lag"]
HELD = TasksetSpec(name="held", path="none", rows=5)


@st.composite
def stages(draw: st.DrawFn) -> StageSpec:
    """A stage of two to six steps, or one that only explores, or that trains on a dataset."""
    what = draw(st.sampled_from(["both"] * 6 + ["explore", "train"]))
    kind = draw(st.sampled_from(KINDS)) if what == "both" else "hard_bound"
    policy = PolicySpec(
        kind=kind,
        args={"wait": draw(st.booleans())} if kind == "hard_bound" else {},
        max_staleness_versions=draw(st.integers(0, 3)),
        bounded=draw(st.booleans()),
        max_inflight_batches=draw(st.integers(1, 4)),
        min_group_members=draw(st.integers(1, 2)),
        max_uses=draw(st.sampled_from([1, 1, 2])),
        cooldown_s=draw(st.sampled_from([0.0, 2.0])),
    )
    more: dict[str, object] = {"total_steps": draw(st.integers(2, 6))}
    if what == "explore":
        more = {"kind": "explore", "total_steps": 0, "collect_groups": 6}
    if what == "train":
        more = {
            "kind": "train",
            "total_steps": 4,
            "taskset": None,
            "dataset": TasksetSpec(name="rows", path="none", rows=9, digest="d"),
        }
    return stage_of(
        algorithm=AlgorithmSpec(kind="grpo", repeat_times=REPEAT),
        policy=policy,
        synchronizer=Synchronizer(
            sync_style=draw(
                st.sampled_from(["fixed", "explorer_driven", "trainer_driven", "fully_async", "fully_async"])
            ),
            sync_interval=draw(st.integers(1, 2)),
            sync_offset=draw(st.integers(0, 1)),
            sync_timeout=draw(st.sampled_from([3.0, 1000.0])),
        ),
        rollout=RolloutSpec(
            max_timeout_s=20.0,
            lease_rollouts=draw(st.sampled_from([0, 1, 3])),
            over_rollout=OverRollout(ratio=draw(st.sampled_from([0.0, 0.5]))),
            straggler_reissue=StragglerReissue(enable=draw(st.booleans()), ratio=4.0),
        ),
        max_read_timeout_s=draw(st.sampled_from([40.0, 1800.0])),
        evals=draw(st.sampled_from([(), (HELD,)])) if what == "both" else (),
        eval_interval=1,
        **more,
    )


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(stage=stages(), seed=st.integers(0, 1 << 16), calm=st.booleans())
def test_whoever_decides_nothing_says_why_and_it_is_so(stage: StageSpec, seed: int, calm: bool) -> None:
    HoldWorld(stage, seed, calm=calm).run(250)


def test_the_worlds_meet_the_common_holds() -> None:
    """The control: a world in which nobody stops would prove nothing."""
    seen = Counter[str]()
    for seed in range(12):
        seen += HoldWorld(stage_of(evals=(HELD,), eval_interval=1, total_steps=4), seed).run(400)
    assert {"Paused", "TooFewExperiences", "PlannedAhead", "PolicyFull", "NoExplorers", "StepsLeft"} <= set(seen)
