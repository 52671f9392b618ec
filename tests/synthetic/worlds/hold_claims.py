"""The claims of each hold, counted anew from the folded state, and the events that it denies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experiment import ExperimentCompleted, StageCompleted
from rftd.streams.events.registry import Event
from rftd.streams.events.task import EvalLeased, TaskLeased
from rftd.streams.events.weights import WeightsRequested
from rftd.streams.folds.evaluations import eval_id
from rftd.streams.folds.group import Group
from rftd.streams.folds.replay_buffer import BufferEntry
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Spine, Status
from rftd.streams.spec.schedule import eval_due, plan_ahead
from rftd.streams.spec.spec import StageSpec
from rftd.workers.control import holds
from rftd.workers.control.hold import NoStage, Paused, StagePlanned
from rftd.workers.control.planner import view_of
from rftd.workers.control.planner_holds import (
    Collects,
    EvalDecides,
    LastChance,
    NoTrainer,
    PlannedAhead,
    StepsAgain,
    TooFewExperiences,
)
from rftd.workers.control.policies.registry import make_policy
from rftd.workers.control.windows import admission_view


class Claims:
    """Looks at the state for itself, with the records that the folds keep and not with what the deciders count."""

    def __init__(self, state: RunState, now_ns: int) -> None:
        self._state = state
        self._now_ns = now_ns

    def true(self, hold: Any) -> bool:
        """True if what the hold says is so."""
        held: bool = getattr(self, f"_{type(hold).__name__}")(hold)
        return held

    @property
    def _spine(self) -> Spine:
        return self._state.spine

    @property
    def _stage(self) -> StageSpec:
        return self._spine.stage_spec()

    def _entries(self) -> list[BufferEntry]:
        replay_buffer = self._state.replay_buffer
        return [*replay_buffer.waiting.values(), *replay_buffer.cooling.values()]

    def _leased_groups(self) -> list[Group]:
        return [group for group in self._state.groups.open.values() if group.sequence >= 0]

    def _missing(self) -> int:
        """Rollouts of leases that have not ended."""
        groups = self._state.groups
        return sum(len(groups.open[lease.group].left_of(lease)) for lease in groups.leases.values())

    def _NoStage(self, hold: NoStage) -> bool:
        spine = self._spine
        return spine.status is not Status.PAUSED and (
            spine.status is not Status.RUNNING or spine.stage < 0 or spine.stage_completed
        )

    def _Paused(self, hold: Paused) -> bool:
        spine = self._spine
        return spine.status is Status.PAUSED and hold.cause == spine.cause and not 0 < hold.again_ns <= self._now_ns

    def _StagePlanned(self, hold: StagePlanned) -> bool:
        return self._spine.planned >= self._spine.last_version

    def _GroupsOpen(self, hold: holds.GroupsOpen) -> bool:
        return hold.groups == len(self._leased_groups()) > 0

    _ClosesGroups = _GroupsOpen

    def _GroupsLeft(self, hold: holds.GroupsLeft) -> bool:
        given_out = self._state.groups.next_sequence.get(self._spine.stage, 0)
        all_groups = self._stage.collect_groups
        left = hold.to_give_out == max(0, all_groups - given_out) and hold.groups == all_groups
        return left and (hold.to_give_out > 0 or bool(self._state.groups.open))

    def _StepsLeft(self, hold: holds.StepsLeft) -> bool:
        spine = self._spine
        executed = max((version for version, generation in spine.checksums if generation >= 0), default=0)
        return hold.done <= max(executed, spine.first_version) and hold.done < hold.last == spine.last_version

    def _NoCheckpoint(self, hold: holds.NoCheckpoint) -> bool:
        steps = {step for step, _ in self._state.checkpoints}
        return hold.step == self._spine.version == self._spine.last_version and hold.step not in steps

    def _BooksOpen(self, hold: holds.BooksOpen) -> bool:
        return hold.experiences == len(self._entries()) > 0

    def _EvalDue(self, hold: holds.EvalDue) -> bool:
        spine = self._spine
        id = eval_id(self._state.experiment, spine.stage, hold.version, hold.taskset)
        due = eval_due(self._stage, hold.version - spine.first_version)
        return due and id not in spine.evaluated and hold.version <= spine.furthest

    def _Collects(self, hold: Collects) -> bool:
        return self._stage.kind == "explore" and not self._entries()

    def _EvalDecides(self, hold: EvalDecides) -> bool:
        decides = bool(self._stage.trainer.by_evaluation.figures)
        return decides and self._spine.planned <= hold.step < self._spine.last_version

    def _NoTrainer(self, hold: NoTrainer) -> bool:
        return self._spine.generation < 0

    def _StepsAgain(self, hold: StepsAgain) -> bool:
        return hold.first == self._spine.version + 1 <= hold.last == self._spine.furthest

    def _PlannedAhead(self, hold: PlannedAhead) -> bool:
        steps = sorted(self._spine.plans)
        wanted = plan_ahead(self._stage.policy)
        return steps == list(range(hold.first, hold.last + 1)) and len(steps) >= wanted

    def _TooFewExperiences(self, hold: TooFewExperiences) -> bool:
        spine, entries = self._spine, self._entries()
        resting = [entry.eligible_at_ns for entry in entries if entry.eligible_at_ns > self._now_ns]
        ready = len(entries) - len(resting)
        waited_ns = max(self._now_ns, spine.recorded_ns) - spine.waits_since_ns
        return (
            (hold.step, hold.need) == (spine.planned + 1, self._stage.experiences_per_step)
            and (hold.have + hold.passed_over, hold.resting) == (ready, len(resting))
            and hold.rested_ns == min(resting, default=None)
            and (hold.have < hold.need if waited_ns < self._stage.max_read_timeout_s * 1e9 else hold.have == 0)
        )

    def _LastChance(self, hold: LastChance) -> bool:
        began = [
            max(group.min_version, min(lease.held_version for lease in group.leases.values()))
            for group in self._leased_groups()
            if group.leases and group.missing
        ]
        return hold.oldest_version == min(began) and hold.step == self._spine.planned + 1

    def _TrainsDataset(self, hold: holds.TrainsDataset) -> bool:
        return self._stage.kind == "train"

    def _NoExplorers(self, hold: holds.NoExplorers) -> bool:
        return not any(each.role == "explorer" for each in self._state.roster.live.values())

    def _PolicyFull(self, hold: holds.PolicyFull) -> bool:
        in_flight = sum(group.repeat_times - len(group.failed) for group in self._leased_groups())
        waiting = sum(1 for entry in self._entries() if not entry.uses)
        view = admission_view(self._stage, view_of(self._state, self._stage))
        admitted = make_policy(self._stage.policy).admit(view)
        return (hold.waiting, hold.in_flight) == (waiting, in_flight) and admitted <= 0

    def _AllGivenOut(self, hold: holds.AllGivenOut) -> bool:
        given_out = self._state.groups.next_sequence.get(self._spine.stage, 0)
        return given_out == self._stage.collect_groups and hold.groups == len(self._leased_groups())

    def _Serves(self, hold: holds.Serves) -> bool:
        return self._stage.serving is not None and self._stage.kind == "explore"

    def _NoneOffered(self, hold: holds.NoneOffered) -> bool:
        groups = self._state.groups
        stage = self._spine.stage
        return hold.rows == groups.offered_rows(stage) <= groups.next_sequence.get(stage, 0)

    def _SyncPoint(self, hold: holds.SyncPoint) -> bool:
        last = self._state.groups.windows[self._spine.stage]
        return hold.groups == len(self._leased_groups()) > 0 and hold.window >= last.number

    def _AwaitsAnswer(self, hold: holds.AwaitsAnswer) -> bool:
        request = self._spine.request
        return request is not None and request.window == hold.window and not self._state.weights.answered(request)

    def _AwaitsWeights(self, hold: holds.AwaitsWeights) -> bool:
        # One that an earlier generation announced is no answer of the trainer that makes it again.
        announced = self._state.weights.of_version(hold.version, self._spine) is not None
        missing = not announced or hold.version > self._spine.version
        return missing and (hold.window < 0 or not self._leased_groups())

    def _NoCredits(self, hold: holds.NoCredits) -> bool:
        explorers, repeat = self._state.roster.explorers(), self._stage.algorithm.repeat_times
        part = min(self._stage.rollout.lease_rollouts or repeat, repeat)
        room = [each.capacity + repeat - self._load(each.worker) for each in explorers]
        crowded = hold.kept or hold.outdated or sum(free >= part for free in room) == 0
        return (hold.explorers, hold.rollouts) == (len(explorers), self._missing()) and bool(crowded)

    _NoneAlone = _NoCredits

    def _load(self, worker: object) -> int:
        groups = self._state.groups
        leases = [lease for lease in groups.leases.values() if lease.worker == worker]
        return sum(len(groups.open[lease.group].left_of(lease)) for lease in leases)

    def _EvalAwaitsWeights(self, hold: holds.EvalAwaitsWeights) -> bool:
        return self._due(hold) and self._state.weights.of_version(hold.version, self._spine) is None

    def _EvalUnderWay(self, hold: holds.EvalUnderWay) -> bool:
        id = eval_id(self._state.experiment, self._spine.stage, hold.version, hold.taskset)
        evaluation = self._state.evals.open.get(id)
        rows = self._stage.evals[hold.taskset].rows
        return (
            self._due(hold) and evaluation is not None and bool(evaluation.leases or evaluation.rows_scored() == rows)
        )

    def _EvalAwaitsExplorer(self, hold: holds.EvalAwaitsExplorer) -> bool:
        busy = {lease.worker for each in self._state.evals.open.values() for lease in each.leases.values()}
        return self._due(hold) and hold.explorers <= len(busy)

    def _due(self, hold: holds.EvalHold) -> bool:
        return self._EvalDue(holds.EvalDue(hold.version, hold.taskset))


def denied(hold: Any, events: Iterable[Event]) -> list[Event]:
    """The events beside the hold that could not be, if it were true."""
    return [event for event in events if _denies(hold, event)]


_OVER = (NoStage, Paused, holds.TrainsDataset, StagePlanned, holds.GroupsOpen)
_NO_LEASES = (*_OVER, holds.NoExplorers)
_NOT_ASKED = (*_OVER, holds.PolicyFull, holds.AllGivenOut, holds.NoneOffered, holds.SyncPoint, holds.NoCredits)


def _denies(hold: Any, event: Event) -> bool:
    match event:
        case BatchPlanned():
            return not isinstance(hold, PlannedAhead | TooFewExperiences | LastChance) or (
                hold.last < event.step if isinstance(hold, PlannedAhead) else hold.step <= event.step
            )
        case StageCompleted() | ExperimentCompleted():
            return True
        case TaskLeased() if not event.alone and not event.reissue:
            at_window = isinstance(hold, holds.BeforeWindow) and hold.window >= 0
            return isinstance(hold, _NO_LEASES) or at_window
        case WeightsRequested():
            return isinstance(hold, _NOT_ASKED)
        case EvalLeased():
            return isinstance(hold, NoStage | Paused | holds.NoExplorers | holds.EvalAwaitsExplorer)
        case _:
            return False
