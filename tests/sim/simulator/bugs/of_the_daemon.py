"""Bugs of those who decide: planner, dispatcher, controller, and their folds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from rftd.daemon.run.supervisor.fleet import Fleet
from rftd.daemon.run.supervisor.orders import Order
from rftd.ops.clock import RecordedClock
from rftd.ops.ids import derive
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experiment import ExperimentFailed
from rftd.streams.events.task import GroupClosed, TaskRetried
from rftd.streams.folds.replay_buffer import Changes, ReplayBuffer
from rftd.streams.log import shared_history
from rftd.streams.log.group_id import group_id
from rftd.workers.control import batches, dispatcher, leasing, windows
from rftd.workers.control.controller import Controller
from rftd.workers.control.dispatcher import Dispatcher
from rftd.workers.control.hold import Decided
from rftd.workers.control.liveness import Liveness
from rftd.workers.control.planner import Planner
from rftd.workers.control.planner_holds import NoTrainer
from rftd.workers.control.policies.buffer_index import BufferIndex
from rftd.workers.control.policies.paced import Paced
from rftd.workers.control.windows import Begin
from simulator.bugs.bug import Bug, instead


def _forget_what_is_being_started(look: Any) -> Any:
    def looking(self: Fleet, berth: Any, now_s: float) -> None:
        look(self, berth, now_s)
        if berth.handle is not None and berth.handle.pid is None:
            berth.handle = None

    return looking


def _skip_a_group(first: Any) -> Any:
    def leaping(state: Any, stage: Any, sequence: int, task: Any, begin: Any) -> Any:
        return first(state, stage, sequence + (sequence > 0), task, begin)

    return leaping


def _close_twice(close: Any) -> Any:
    def closing(state: Any, **more: Any) -> Any:
        for decision in close(state, **more):
            yield from (decision, decision)

    return closing


def _retry_what_did_not_fail(close: Any) -> Any:
    def closing(state: Any, **more: Any) -> Any:
        for decision in close(state, **more):
            yield decision
            closed = decision.event
            group = state.groups.open[closed.group] if isinstance(closed, GroupClosed) else None
            first = group_id(state.experiment, state.spine.stage, 0)
            if group is not None and group.id == first and not closed.failed:
                retried = TaskRetried(
                    group=group.id,
                    retry=derive(group.id, "retry"),
                    stage=group.stage,
                    sequence=group.sequence,
                    row=group.row,
                    epoch=group.epoch,
                    repeat_times=group.repeat_times,
                    min_version=group.min_version,
                    pinned=group.pinned,
                )
                state.__dict__["planted"] = retried

    return closing


def _write_the_retry(decide: Any) -> Any:
    """The controller owns the type, so it writes what was planted."""

    def deciding(self: Controller, *args: Any, **more: Any) -> Any:
        planted = self._state.__dict__.pop("planted", None)
        return Decided([planted]) if planted is not None else decide(self, *args, **more)

    return deciding


@contextmanager
def _retry_in_vain() -> Iterator[None]:
    closes = instead(dispatcher, "close_groups", _retry_what_did_not_fail)
    writes = instead(Controller, "decide", _write_the_retry)
    with closes(), writes():
        yield


def _improve_a_reward(close: Any) -> Any:
    """A group closes with a reward that its experience does not have."""

    def closing(state: Any, **more: Any) -> Any:
        for decision in close(state, **more):
            closed = decision.event
            if isinstance(closed, GroupClosed) and closed.members:
                first, *others = closed.members
                better = msgspec.structs.replace(first, reward=first.reward + 1.0)
                decision = decision._replace(event=msgspec.structs.replace(closed, members=(better, *others)))
            yield decision

    return closing


def _improve_a_score(complete: Any) -> Any:
    def completing(state: Any) -> Any:
        for decision in complete(state):
            yield decision._replace(event=msgspec.structs.replace(decision.event, score=decision.event.score + 0.5))

    return completing


def _take_the_newest(begin: Any) -> Any:
    """Explorers take new weights in the middle of a window."""

    def beginning(self: Any) -> Any:
        begun = begin(self)
        newest = self._state.weights.newest(self._state.spine)
        return begun._replace(version=newest.version) if isinstance(begun, Begin) and begun.place > 0 else begun

    return beginning


def _stall(decide: Any) -> Any:
    def deciding(self: Planner, positions: Any, now_ns: int) -> Any:
        return Decided((), NoTrainer()) if self._state.spine.planned >= 2 else decide(self, positions, now_ns)

    return deciding


def _plan_experiences_again(decide: Any) -> Any:
    """Each batch of a stage is made of what its first one was made of."""

    def deciding(self: Any, positions: Any, now_ns: int) -> Any:
        plans = self.__dict__.setdefault("first_plans", {})
        decided = decide(self, positions, now_ns)
        events = [
            _made_of(plans.setdefault(event.stage, event), event) if _is_plan(event) and event.experiences else event
            for event in decided.events
        ]
        return decided._replace(events=events)

    return deciding


def _made_of(first: BatchPlanned, plan: BatchPlanned) -> BatchPlanned:
    older = plan.step - first.step
    items = (
        msgspec.structs.replace(item, staleness_versions=item.staleness_versions + older) for item in first.experiences
    )
    return msgspec.structs.replace(plan, experiences=tuple(items), groups=first.groups)


def _plan_twice(decide: Any) -> Any:
    def deciding(self: Planner, positions: Any, now_ns: int) -> Any:
        decided = decide(self, positions, now_ns)
        twice = [each for event in decided.events for each in (event,) * (1 + _is_plan(event))]
        return decided._replace(events=twice)

    return deciding


def _observe_nothing(decide: Any) -> Any:
    def deciding(self: Planner, positions: Any, now_ns: int) -> Any:
        decided = decide(self, positions, now_ns)
        blind = [msgspec.structs.replace(event, observed=()) if _is_plan(event) else event for event in decided.events]
        return decided._replace(events=blind)

    return deciding


def _is_plan(event: object) -> bool:
    return isinstance(event, BatchPlanned)


def _repeat_rows(rows: Any) -> Any:
    return lambda stage, step, **shared: rows(stage, max(1, step - 1), **shared)


def _count_plans_twice(planned: Any) -> Any:
    def counting(self: ReplayBuffer, event: BatchPlanned) -> None:
        before = self.books.planned
        planned(self, event)
        self.books.planned += self.books.planned - before

    return counting


def _forget_the_limit(planned: Any) -> Any:
    """What was planned for the last time is kept, as if there were no limit of uses."""

    def counting(self: ReplayBuffer, event: BatchPlanned) -> Any:
        return planned(self, msgspec.structs.replace(event, max_uses=0 if event.max_uses > 1 else event.max_uses))

    return counting


def _never_rest(change: Any) -> Any:
    def changing(self: BufferIndex, experiences: Changes) -> None:
        awake = {id: entry and msgspec.structs.replace(entry, eligible_at_ns=0) for id, entry in experiences.items()}
        change(self, awake)

    return changing


def _keep_a_changed_priority_to_oneself(prioritized: Any) -> Any:
    """Nobody who keeps an order is told."""

    def changing(self: ReplayBuffer, event: Any) -> Any:
        prioritized(self, event)
        return {}

    return changing


def _forget_a_changed_priority(closed: Any) -> Any:
    """The change of a priority is forgotten where it is read before the group closes."""

    def closing(self: ReplayBuffer, event: GroupClosed, decoded: Any) -> Any:
        kept, self._priorities = self._priorities, {}
        found = closed(self, event, decoded)
        self._priorities = kept
        return found

    return closing


def _end_early(lacks: Any) -> Any:
    def lacking(self: Controller) -> Any:
        return None if self._state.spine.version >= self._state.spine.last_version - 1 else lacks(self)

    return lacking


def _despair(failure: Any) -> Any:
    def failing(self: Controller) -> ExperimentFailed | None:
        if any(gone.lost for gone in self._state.roster.gone.values()):
            return ExperimentFailed(code="", reason="a worker was lost", role="daemon")
        found: ExperimentFailed | None = failure(self)
        return found

    return failing


def _leap_in_the_data(position: Any) -> Any:
    async def leaping(*args: Any) -> Any:
        next_sequence, redo = await position(*args)
        return next_sequence + 3, redo

    return leaping


BUGS = (
    Bug("the dispatcher skips a group", "verify: no-task-skipped", instead(leasing, "_new_group", _skip_a_group)),
    Bug(
        "a window changes its weights",
        "verify: windows-keep-weights",
        instead(windows._Next, "begin", _take_the_newest),
    ),
    Bug("a group closes twice", "verify: groups-close-once", instead(dispatcher, "close_groups", _close_twice)),
    Bug(
        "a group that did not fail is retried",
        "verify: retries-have-a-cause",
        _retry_in_vain,
    ),
    Bug(
        "a group closes with another reward",
        "verify: members-are-their-experiences",
        instead(dispatcher, "close_groups", _improve_a_reward),
    ),
    Bug(
        "an evaluation is completed with another score",
        "verify: evals-are-their-scores",
        instead(dispatcher, "complete_evals", _improve_a_score),
    ),
    Bug(
        "a lease is never given out again",
        "liveness",
        instead(Dispatcher, "_expire", lambda _: lambda _self, _over, _now_s: iter(())),
    ),
    Bug(
        "who did not look takes it for silence",
        "lost in vain",
        instead(Liveness, "_looked_until", lambda _: lambda _self, now_s: now_s),
        mode="zombies",
        within_seeds=250,
    ),
    Bug(
        "a decision goes by the wall clock alone",
        "clocks",
        instead(RecordedClock, "now_ns", lambda _: lambda self: self._clock.now_ns()),
        within_seeds=200,
    ),
    Bug("the planner stalls", "liveness", instead(Planner, "decide", _stall)),
    Bug("an experience is planned twice", "verify: books-balance", instead(Planner, "decide", _plan_experiences_again)),
    Bug(
        "an experience is used more often than its limit",
        "verify: books-balance",
        instead(ReplayBuffer, "_fold_plan", _forget_the_limit),
    ),
    Bug(
        "an experience is used before it has rested",
        "verify: books-balance",
        instead(BufferIndex, "change", _never_rest),
    ),
    Bug(
        "a changed priority changes no order",
        "ranked",
        instead(ReplayBuffer, "_fold_priority", _keep_a_changed_priority_to_oneself),
    ),
    Bug(
        "a changed priority is lost if the group closes later",
        "ranked",
        instead(ReplayBuffer, "_fold_closing", _forget_a_changed_priority),
    ),
    Bug(
        "the planner does not wait",
        "patient",
        instead(Planner, "_hold_for_unfinished", lambda _: lambda _self, _step, _version: None),
    ),
    Bug("a plan is made twice", "verify: trained-once", instead(Planner, "decide", _plan_twice)),
    Bug(
        "a plan rests on what it did not read",
        "verify: plans-name-what-is-there",
        instead(Planner, "decide", _observe_nothing),
    ),
    Bug("the planner repeats rows", "verify: rows-in-order", instead(batches, "rows_of_step", _repeat_rows)),
    Bug(
        "stale experiences are trained",
        "verify: staleness-bounded",
        instead(Paced, "oldest_allowed", lambda _: lambda _self, _view: 0),
    ),
    Bug(
        "a repetition counts again",
        "confluent",
        instead(ReplayBuffer, "_is_new", lambda _: lambda _self, _decoded: True),
    ),
    Bug("a plan counts twice in the books", "balanced", instead(ReplayBuffer, "_fold_plan", _count_plans_twice)),
    Bug(
        "a stage ends before its last step",
        "verify: completed-is-complete",
        instead(Controller, "_first_lack", _end_early),
    ),
    Bug(
        "a fork leaps over groups",
        "verify: forks-share-history",
        instead(shared_history, "_position", _leap_in_the_data),
    ),
    Bug(
        "the key alone says what a command is",
        "answers_are_true",
        instead(Order, "id", lambda _: lambda self, attempt: derive(self.key, "any", attempt)),
        within_seeds=200,
    ),
    Bug(
        "a worker that is being started is taken for one that ended",
        "places",
        instead(Fleet, "_look_at_start", _forget_what_is_being_started),
        within_seeds=100,
    ),
    Bug("a lost worker fails the experiment", "ended", instead(Controller, "_failure", _despair)),
)
