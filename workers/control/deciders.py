"""`Deciders` holds controller, planner and dispatcher of one experiment, and what each said last."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import msgspec

from rftd.streams.events.task import EvalLeased, TaskLeased, TasksDrawn
from rftd.streams.events.weights import WeightsRequested
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.decision import Decision
from rftd.streams.log.topics import Partition
from rftd.streams.spec.split_submission import ROLES
from rftd.workers.control.controller import Controller
from rftd.workers.control.dispatcher import Dispatcher
from rftd.workers.control.hold import Decided, DrawsRows, ReadsColumns
from rftd.workers.control.holds import (
    ControllerHold,
    Dispatched,
    EvalAwaitsExplorer,
    PlannerHold,
)
from rftd.workers.control.liveness import Liveness
from rftd.workers.control.obstacle import Trouble
from rftd.workers.control.planner import Planner
from rftd.workers.control.selectors.task_rows import ColumnSource, no_columns


class LastDecided(msgspec.Struct):
    """The last answer of each decider; None before it was asked first, and where it raised instead."""

    controller: Decided[ControllerHold] | None = None
    planner: Decided[PlannerHold] | None = None
    dispatcher: Dispatched | None = None


class Deciders:
    """The three deciders of one experiment: pure, on the state, so new ones decide as the old ones would have."""

    def __init__(
        self, state: RunState, liveness: Liveness, *, starts: frozenset[str], columns: ColumnSource = no_columns
    ) -> None:
        self._state = state
        self._liveness = liveness
        self._columns = columns
        self._controller = Controller(state, starts=starts)
        self.said = LastDecided()
        self.renew()

    def renew(self) -> None:
        """Begins anew with the two that keep something of the state: what was left half way is no use."""
        self._planner = Planner(self._state)
        self._dispatcher = Dispatcher(self._state, self._liveness, columns=self._columns)

    def control(self, trouble: Trouble | None, now_ns: int) -> Sequence[Decision]:
        """The controller's decisions."""
        # First None: where a decider raises, what it said before that is no reason for anything any more.
        self.said.controller = None
        self.said.controller = self._controller.decide(trouble, now_ns=now_ns)
        return [Decision(event) for event in self.said.controller.events]

    def dispatch(self, now_s: float) -> Sequence[Decision]:
        """The dispatcher's decisions."""
        self.said.dispatcher = None
        self.said.dispatcher = self._dispatcher.decide(now_s)
        return self.said.dispatcher.decisions

    def plan(self, positions: Mapping[Partition, int], now_ns: int) -> Sequence[Decision]:
        """The planner's decisions."""
        self.said.planner = None
        self.said.planner = self._planner.decide(positions, now_ns)
        return [Decision(event) for event in self.said.planner.events]


def asked(
    state: RunState, liveness: Liveness, *, now_s: float, now_ns: int, starts: frozenset[str] = ROLES
) -> LastDecided:
    """The decisions that each would take now, for those who only look: neither state nor liveness change."""
    # The planner empties `touched` when it takes changes in: the real planner's would be lost with it.
    touched = state.touched
    deciders = Deciders(state, copy.deepcopy(liveness), starts=starts)
    try:
        deciders.control(None, now_ns)
        deciders.dispatch(now_s)
        deciders.plan({}, now_ns)
    finally:
        state.touched = touched
    return _unwritten(deciders.said)


def _unwritten(said: LastDecided) -> LastDecided:
    """The answers without the holds that come after what a decider would do first."""
    planner = said.planner
    dispatcher = said.dispatcher
    if planner is not None and planner.events:
        planner = planner._replace(hold=None)
    if dispatcher is not None:
        kinds = {type(decision.event) for decision in dispatcher.decisions}
        if kinds & {TaskLeased, WeightsRequested}:
            dispatcher = dispatcher._replace(hold=None)
        elif TasksDrawn in kinds or isinstance(dispatcher.hold, ReadsColumns):  # the daemon has them
            dispatcher = dispatcher._replace(hold=DrawsRows())
        if EvalLeased in kinds and dispatcher.evaluation is not None:
            due = dispatcher.evaluation
            free = EvalAwaitsExplorer(due.version, due.taskset, explorers=1)
            dispatcher = dispatcher._replace(evaluation=free)
    return LastDecided(said.controller, planner, dispatcher)
