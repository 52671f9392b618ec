"""A whole stage at a desk: dispatcher, planner, a trainer and explorers take turns as the dice say."""

from __future__ import annotations

import random
from typing import NamedTuple

from synthetic.worlds.desk import Desk

from rftd.streams.events.registry import Event
from rftd.streams.events.task import GroupClosed, TaskLeased
from rftd.streams.events.weights import WeightsAnswered, WeightsOverdue, WeightsRequested
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.effective import effective
from rftd.streams.log.fencing import FenceView
from rftd.streams.spec.schedule import publish_due
from rftd.streams.spec.spec import StageSpec
from rftd.workers.control.dispatcher import Dispatcher
from rftd.workers.control.liveness import Liveness
from rftd.workers.control.planner import Planner


class Begun(NamedTuple):
    """A group, and the state of the stage when it was begun."""

    window: int
    place: int
    version: int
    trained: int
    """Steps that the trainer had done by then."""
    outstanding: frozenset[int]
    """Windows of groups that were under way."""


class SyncModel:
    """Runs until every step is trained; raises AssertionError if nobody can do anything any more."""

    def __init__(
        self, stage: StageSpec, seed: int, *, failing: float = 0.0, restarting: float = 0.0, deaf: bool = False
    ) -> None:
        """`failing` and `restarting`: odds of a rollout and of a turn; `deaf`: the trainer answers nobody."""
        self.desk = Desk(stage)
        self.stage, self.random = stage, random.Random(seed)
        self.begun: list[Begun] = []
        self.requests: list[WeightsRequested] = []
        self.overdue: list[WeightsOverdue] = []
        self.staleness: list[int] = []
        self._failing, self._restarting, self._deaf = failing, restarting, deaf
        self._left: list[tuple[TaskLeased, int]] = []
        self._windows: dict[object, int] = {}
        self._now_s = 0.0
        for slot in range(2):
            self.desk.join(slot)
        self._start_daemon()

    def _start_daemon(self) -> None:
        """A new one folds what there is; it must find what the one before knew."""
        before, self.desk.state = self.desk.state, RunState(self.desk.id)
        fences = FenceView()
        for record in self.desk.recorder.records:
            decoded = effective(record, fences)
            if decoded is not None:
                self.desk.state.apply(decoded)
        assert self.desk.state.groups.windows == before.groups.windows
        assert self.desk.state.weights.answer == before.weights.answer
        self._dispatcher = Dispatcher(self.desk.state, Liveness(lost_after_s=1e9))
        self._planner = Planner(self.desk.state)

    def run(self, *, turns: int = 20_000) -> SyncModel:
        """The model runs to the end of the stage."""
        actors = [self._dispatch, self._plan, self._roll_out, self._train]
        spine = self.desk.state.spine
        idle = 0
        for _ in range(turns):
            if spine.version >= self.stage.total_steps:
                return self
            if self.random.random() < self._restarting:
                self._start_daemon()
                spine = self.desk.state.spine
            self._now_s += 1.0
            order = self.random.sample(actors, len(actors))
            # Some are slow: they sit a turn out, unless everybody has nothing to do.
            busy = [act() for act in order if idle or self.random.random() < 0.7]
            idle = 0 if any(busy) else idle + 1
            patience = 3 + self.stage.synchronizer.sync_timeout if self._deaf else 3
            assert idle < patience, f"nobody can go on after step {spine.version}"
        raise AssertionError(f"step {spine.version} after {turns} turns")

    def _dispatch(self) -> bool:
        open_windows = frozenset(group.window for group in self.desk.state.groups.open.values())
        events = self.desk.obey(self._dispatcher.decide(self._now_s).decisions)
        for event in events:
            self._note(event, open_windows)
            if isinstance(event, TaskLeased):
                open_windows |= {event.window}
        return bool(events)

    def _note(self, event: Event, open_windows: frozenset[int]) -> None:
        match event:
            case TaskLeased():
                trained = self.desk.state.spine.version
                self.begun.append(Begun(event.window, event.place, event.min_version, trained, open_windows))
                self._left += [(event, rollout) for rollout in event.rollouts]
            case WeightsRequested():
                self.requests.append(event)
            case WeightsOverdue():
                self.overdue.append(event)
            case GroupClosed() | _:
                pass

    def _plan(self) -> bool:
        events = self.desk.obey(self._planner.decide(self.desk.positions, 0).events)
        for event in events:
            self.staleness += [
                item.staleness_versions
                for item in getattr(event, "experiences", ())
                if hasattr(item, "staleness_versions")
            ]
        return bool(events)

    def _roll_out(self) -> bool:
        some = self.random.sample(self._left, min(len(self._left), self.random.randint(1, 6)))
        for lease, rollout in some:
            self._left.remove((lease, rollout))
            if self.random.random() < self._failing:
                self.desk.fail(lease, rollout)
            else:
                self.desk.produce(lease, [rollout], version=lease.min_version)
        return bool(some)

    def _train(self) -> bool:
        spine, weights = self.desk.state.spine, self.desk.state.weights
        trained = spine.version + 1 in spine.plans
        if trained:
            step = self.desk.execute()
            if publish_due(self.stage, step):
                self.desk.publish(step)
        request = spine.request
        if self._deaf or request is None or weights.answered(request):
            return trained
        if weights.of_version(spine.version, spine) is None:
            self.desk.publish(spine.version)
        self.desk.put(
            WeightsAnswered(stage=request.stage, window=request.window, number=request.number, version=spine.version)
        )
        return True
