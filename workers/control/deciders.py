"""`Deciders`: controller, planner and dispatcher of one experiment, with the last answer of each."""

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
from rftd.workers.control.hold import Decided, DrawsRows, ReadsColumns, Trouble
from rftd.workers.control.holds import (
    ControllerHold,
    Dispatched,
    EvalAwaitsExplorer,
)
from rftd.workers.control.liveness import Liveness
from rftd.workers.control.planner import Planner
from rftd.workers.control.planner_holds import PlannerHold
from rftd.workers.control.selectors.task_rows import ColumnSource, no_columns


class LastDecided(msgspec.Struct):
    """The last answer of each decider; None before the first call, and after an exception."""

    controller: Decided[ControllerHold] | None = None
    """Last answer of the controller."""
    planner: Decided[PlannerHold] | None = None
    """Last answer of the planner."""
    dispatcher: Dispatched | None = None
    """Last answer of the dispatcher."""


class Deciders:
    """The three deciders of one experiment: functions of the state, so that new ones decide like old ones."""

    def __init__(
        self, state: RunState, liveness: Liveness, *, starts: frozenset[str], columns: ColumnSource = no_columns
    ) -> None:
        """Decides for the run in `state`, with silences measured by `liveness`. `starts` are the roles whose workers
        the daemon's fleet starts; `columns` reads dataset columns for selectors.
        """
        self._state = state
        self._liveness = liveness
        self._columns = columns
        self._controller = Controller(state, starts=starts)
        self.last = LastDecided()
        """Last answer of each decider, the source of `rftd why`."""
        self.renew()

    def renew(self) -> None:
        """Replaces planner and dispatcher, whose caches may be inconsistent after an exception."""
        self._planner = Planner(self._state)
        self._dispatcher = Dispatcher(self._state, self._liveness, columns=self._columns)

    def control(self, trouble: Trouble | None, now_ns: int) -> Sequence[Decision]:
        """Returns the events decided by the controller; its answer is stored in `last`."""
        # None first: after an exception, the former hold explains nothing any more.
        self.last.controller = None
        self.last.controller = self._controller.decide(trouble, now_ns=now_ns)
        return [Decision(event) for event in self.last.controller.events]

    def dispatch(self, now_s: float) -> Sequence[Decision]:
        """Returns the events decided by the dispatcher at monotonic time `now_s`; its answer is stored in `last`."""
        self.last.dispatcher = None
        self.last.dispatcher = self._dispatcher.decide(now_s)
        return self.last.dispatcher.decisions

    def plan(self, positions: Mapping[Partition, int], now_ns: int) -> Sequence[Decision]:
        """Returns the events decided by the planner; `positions` are the offsets up to which the state was folded."""
        self.last.planner = None
        self.last.planner = self._planner.decide(positions, now_ns)
        return [Decision(event) for event in self.last.planner.events]


def current_answers(
    state: RunState, liveness: Liveness, *, now_s: float, now_ns: int, starts: frozenset[str] = ROLES
) -> LastDecided:
    """Returns the answer of each decider at this moment, without recording a decision: neither the state nor the
    liveness changes.
    """
    # The planner empties `touched` as it reads changes: the real planner would lose them.
    touched = state.touched
    deciders = Deciders(state, copy.deepcopy(liveness), starts=starts)
    try:
        deciders.control(None, now_ns)
        deciders.dispatch(now_s)
        deciders.plan({}, now_ns)
    finally:
        state.touched = touched
    return _without_stale_holds(deciders.last)


def _without_stale_holds(decided: LastDecided) -> LastDecided:
    """Returns the answers without holds that are outdated once the decisions beside them are written."""
    planner = decided.planner
    dispatcher = decided.dispatcher
    if planner is not None and planner.events:
        planner = planner._replace(hold=None)
    if dispatcher is not None:
        kinds = {type(decision.event) for decision in dispatcher.decisions}
        if kinds & {TaskLeased, WeightsRequested}:
            dispatcher = dispatcher._replace(hold=None)
        elif TasksDrawn in kinds or isinstance(dispatcher.hold, ReadsColumns):  # the daemon has the columns
            dispatcher = dispatcher._replace(hold=DrawsRows())
        if EvalLeased in kinds and dispatcher.evaluation is not None:
            due = dispatcher.evaluation
            free = EvalAwaitsExplorer(due.version, due.taskset, explorers=1)
            dispatcher = dispatcher._replace(evaluation=free)
    return LastDecided(decided.controller, planner, dispatcher)
