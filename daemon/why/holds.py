"""Words for what controller, planner and dispatcher say: the very hold that each returned beside its decisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, assert_never

from rftd.daemon.why.life import wanted
from rftd.daemon.why.scene import Scene
from rftd.daemon.why.stragglers import straggler_wait
from rftd.daemon.why.wait import Level, Wait, told
from rftd.streams.evaluations import due_evals, eval_id
from rftd.streams.events.batch import BatchPlanned, ExperienceRetired
from rftd.streams.events.experiment import ExperimentResumed, StageCompleted
from rftd.streams.events.registry import Event
from rftd.streams.events.task import TaskLeased
from rftd.streams.events.weights import WeightsRequested
from rftd.workers.control.holds import (
    AllGivenOut,
    AwaitsAnswer,
    AwaitsWeights,
    BooksOpen,
    Collects,
    ControllerHold,
    DispatcherHold,
    EvalAwaitsExplorer,
    EvalAwaitsWeights,
    EvalDue,
    EvalHold,
    EvalUnderWay,
    GroupsLeft,
    GroupsOpen,
    LastChance,
    NoCheckpoint,
    NoCredits,
    NoExplorers,
    NoStage,
    NoTrainer,
    Paused,
    PlannedAhead,
    PlannerHold,
    PolicyFull,
    StagePlanned,
    StepsAgain,
    StepsLeft,
    SyncPoint,
    TooFewExperiences,
    TrainsDataset,
)

WAITS: Final = Level.WAITS
_NEXT_STAGE: Final = "the next stage to begin"


def deciders_waits(scene: Scene) -> Iterator[Wait]:
    """One line for each decider, one for the slowest task that the planner waits for, one for an evaluation."""
    said = scene.said()
    if said.controller is not None:
        controller = said.controller
        yield _controller(scene, controller.hold) if controller.hold is not None else _lives(scene, controller.events)
    if said.planner is not None:
        planner = said.planner
        yield _planner(scene, planner.hold) if planner.hold is not None else _plans(scene, planner.events)
        if isinstance(planner.hold, TooFewExperiences) and (straggler := straggler_wait(scene)) is not None:
            yield straggler
    if said.dispatcher is not None:
        hold = said.dispatcher.hold
        events = [decision.event for decision in said.dispatcher.decisions]
        yield _dispatcher(scene, hold) if hold is not None else _gives_out(scene, events)
        if said.dispatcher.evaluation is not None:
            yield _evaluation(scene, said.dispatcher.evaluation)


def _paused(scene: Scene, role: str) -> Wait:
    spine = scene.state.spine
    what = wanted(spine.cause) if spine.cause else "the experiment to be resumed"
    ends = "that is put right; it goes on by itself" if spine.cause else f"rftd resume {scene.name}"
    return told(role, WAITS, "paused", what, "you", ends, since_ns=spine.status_ns)


def _lives(scene: Scene, events: Sequence[Event]) -> Wait:
    """The controller has written the experiment's next event, or would."""
    # The controller has written the resumption; until it is folded the experiment is still paused, for everybody.
    if any(isinstance(event, ExperimentResumed) for event in events):
        return _paused(scene, "controller")
    if any(isinstance(event, StageCompleted) for event in events):
        return told("controller", Level.WORKS, "stage_ends")
    return told("controller", WAITS, "stage_starts", "its own next event", "controller", "the log takes it")


def _controller(scene: Scene, hold: ControllerHold) -> Wait:
    role = "controller"
    match hold:
        case Paused():
            return _paused(scene, role)
        case NoStage():
            return _lives(scene, ())
        case GroupsLeft(to_give_out, groups):
            what = f"{to_give_out} of {groups} tasks to be given out, and those under way"
            return told(role, WAITS, "groups", what, "explorers", "all of them are tried")
        case StepsLeft(done, last):
            what = f"the steps of stage {scene.state.spine.stage_spec().name}: step {done} of {last} is done"
            return told(role, WAITS, "steps", what, "trainer", "the last step is executed")
        case NoCheckpoint(step):
            return told(role, WAITS, "checkpoint", f"the checkpoint of step {step}", "trainer", "it is committed")
        case GroupsOpen(groups):
            what = f"{groups} groups of the stage to be closed"
            return told(role, WAITS, "groups_close", what, "dispatcher", "their leases end")
        case BooksOpen(experiences):
            what = f"{experiences} experiences to be retired"
            return told(role, WAITS, "books_close", what, "planner", "the planner retires them")
        case EvalDue(version, taskset):
            name = scene.state.spine.stage_spec().evals[taskset].name
            what = f"the evaluation of weight version {version} on {name}"
            return told(role, WAITS, "evaluations", what, "evaluation", "every row is scored")
    assert_never(hold)


def _plans(scene: Scene, events: Sequence[Event]) -> Wait:
    """The planner has written something, or would, and what comes after it is not known."""
    retired = [event for event in events if isinstance(event, ExperienceRetired)]
    if any(event.reason == "collected" for event in retired):
        return _planner(scene, Collects())
    if any(event.reason == "stage_ended" for event in retired):
        left = sum(len(event.experiences) for event in retired)
        return told("planner", Level.WORKS, "closes_books", f"retires {left} experiences")
    spine = scene.state.spine
    planned = [event.step for event in events if isinstance(event, BatchPlanned)]
    step = min(planned, default=max(spine.planned, spine.first_version) + 1)
    return told("planner", Level.WORKS, "plans", f"plans step {step}")


def _planner(scene: Scene, hold: PlannerHold) -> Wait:
    role = "planner"
    match hold:
        case Paused():
            return _paused(scene, role)
        case NoStage():
            return told(role, WAITS, "stage", _NEXT_STAGE, "controller", _NEXT_STAGE)
        case Collects():
            name = scene.state.spine.stage_spec().name
            return told(role, Level.WORKS, "collects", f"stage {name} keeps what is explored, and trains nothing")
        case StagePlanned():
            what = f"every step of stage {scene.state.spine.stage_spec().name} is planned"
            return told(role, Level.DONE, "stage_planned", what)
        case NoTrainer():
            what = "a trainer to take up the history"
            return told(role, WAITS, "trainer_takes_up", what, "trainer", "generation.started")
        case StepsAgain(first, last):
            what = f"steps {first} to {last} to be executed again"
            return told(role, WAITS, "steps_again", what, "trainer", f"step {last} is executed")
        case PlannedAhead(first, last):
            what = f"steps {first} to {last} to be trained: they are planned already"
            return told(role, WAITS, "plan_ahead", what, "trainer", f"step {first} is executed")
        case TooFewExperiences():
            return _too_few(scene, hold)
        case LastChance(step, oldest):
            what = f"groups that began on weight version {oldest} or newer: step {step} is the last that may hold them"
            ends = "they end (policy wait: true), or max_read_timeout"
            return told(role, WAITS, "last_chance", what, "explorers", ends)
    assert_never(hold)


def _too_few(scene: Scene, hold: TooFewExperiences) -> Wait:
    # The hold says what the batch lacks; who is at work on it belongs to the answer, not to the decision.
    groups = scene.state.groups.open
    rollouts = sum(len(group.missing) for group in groups.values())
    what = f"experiences for step {hold.step}: {hold.have} of {hold.need} are there"
    if hold.passed_over:
        what += f", and {hold.passed_over} that the policy does not choose yet"
    what += f"; {rollouts} rollouts are under way in {len(groups)} groups"
    if hold.rested_ns is not None:
        rest_s = max(0.0, (hold.rested_ns - scene.now_ns) / 1e9)
        what += f"; {hold.resting} used ones rest, the first for {rest_s:.1f} s more"
    left_s = max(0.0, (hold.read_until_ns - scene.now_ns) / 1e9)
    ends = f"groups close, or what is there is planned in {left_s:.0f} s (max_read_timeout)"
    return told("planner", WAITS, "experiences", what, "explorers" if groups else "dispatcher", ends)


def _gives_out(scene: Scene, events: Sequence[Event]) -> Wait:
    """The dispatcher has written something, or would, and what comes after it is not known."""
    if any(isinstance(event, TaskLeased | WeightsRequested) for event in events):
        return told("dispatcher", Level.WORKS, "leases", "gives out groups")
    return _dispatcher(scene, GroupsOpen(scene.state.groups.to_close))


def _dispatcher(scene: Scene, hold: DispatcherHold) -> Wait:
    role = "dispatcher"
    spine = scene.state.spine
    match hold:
        case Paused():
            return _paused(scene, role)
        case NoStage():
            return told(role, WAITS, "stage", _NEXT_STAGE, "controller", _NEXT_STAGE)
        case TrainsDataset():
            return told(role, Level.DONE, "no_rollouts", f"stage {spine.stage_spec().name} trains on a dataset")
        case StagePlanned():
            return told(role, Level.DONE, "stage_planned", "every step of the stage is planned")
        case GroupsOpen(groups):
            return told(role, Level.WORKS, "closes_groups", f"closes {groups} groups of the stage")
        case NoExplorers():
            what = "an explorer: none has joined, or none is heard of"
            if scene.starts("explorer"):
                return told(role, WAITS, "explorers", what, "fleet", "one joins")
            return told(role, Level.STUCK, "explorers", what, "you", scene.joins_by("explorer"))
        case PolicyFull(planned, waiting, in_flight):
            policy = spine.stage_spec().policy
            counts = f"{planned} planned, {waiting} waiting, {in_flight} in flight"
            bound = f"max_staleness {policy.max_staleness_versions}, {policy.max_inflight_batches} batches"
            what = f"the policy to admit a group: {counts} ({policy.kind}: {bound} ahead)"
            return told(role, WAITS, "policy", what, "trainer", f"step {spine.version + 1} is executed")
        case AllGivenOut(groups):
            what = f"{groups} groups under way: every task of stage {spine.stage_spec().name} is given out"
            return told(role, WAITS, "given_out", what, "explorers", "they are finished")
        case SyncPoint(window, groups):
            what = f"{_before(scene, window)}{groups} groups under way, before explorers take weights"
            return told(role, WAITS, "sync_point", what, "explorers", "they are finished")
        case AwaitsAnswer() | AwaitsWeights():
            return _before_window(scene, hold)
        case NoCredits():
            return _no_credits(hold)
    assert_never(hold)


def _before(scene: Scene, window: int) -> str:
    name = scene.state.spine.stage_spec().name
    return f"sync point before window {window} of stage {name}: " if window >= 0 else ""


def _before_window(scene: Scene, hold: AwaitsAnswer | AwaitsWeights) -> Wait:
    """Explorers are between two windows, or before the first one, and the trainer has to do its part."""
    if isinstance(hold, AwaitsWeights):
        state = "weights"
        needed = f"weight version {hold.version}, on which the next group must begin"
        ends = "it is trained and published"
    else:
        state = "answer"
        needed = "the trainer's answer: it was asked for newer weights"
        ends = "it answers after the step under way, or at once if it has none"
    if hold.too_old:
        bound = scene.state.spine.stage_spec().policy.max_staleness_versions
        needed += f"; sync_timeout has passed, and nothing older may be trained (max_staleness {bound})"
    if hold.timeout_s is not None:
        ends += f", or sync_timeout ({hold.timeout_s:g} s) passes"
    return told("dispatcher", WAITS, state, f"{_before(scene, hold.window)}{needed}", "trainer", ends)


def _no_credits(hold: NoCredits) -> Wait:
    what = f"a free place: {hold.explorers} explorers have {hold.rollouts} rollouts leased"
    if hold.suspects:
        what += f"; {hold.kept} of them are kept for {hold.suspects} tasks with which workers died, one by one"
    if hold.outdated:
        what += f"; {hold.outdated} of them have yet to load newer weights"
    return told("dispatcher", WAITS, "credits", what, "explorers", "rollouts end")


def _evaluation(scene: Scene, hold: EvalHold) -> Wait:
    state = scene.state
    role = "evaluation"
    stage = state.spine.stage_spec()
    spec = stage.evals[hold.taskset]
    # The hold names the oldest only; how many wait behind it is for people, so it is counted when somebody asks.
    due = sum(1 for _ in due_evals(state, stage))
    more = f" ({due - 1} more are due)" if due > 1 else ""
    subject = f"weight version {hold.version} on {spec.name}{more}"
    evaluation = state.evals.open.get(eval_id(state.experiment, state.spine.stage, hold.version, hold.taskset))
    rows = f"{evaluation.rows_scored() if evaluation is not None else 0} of {spec.rows} rows are scored"
    match hold:
        case EvalAwaitsWeights():
            return told(role, WAITS, "weights", f"{subject}: it is not announced", "trainer", "it is published")
        case EvalUnderWay():
            return told(role, Level.WORKS, "scores", f"{subject}: {rows}", "explorers", "every row is scored")
        case EvalAwaitsExplorer() if hold.explorers:
            what = f"{subject}: an idle explorer; {rows}"
            return told(role, WAITS, "explorer_free", what, "explorers", "one is free")
        case EvalAwaitsExplorer():
            on_whom = "fleet" if scene.starts("explorer") else "you"
            return told(role, WAITS, "explorers", f"{subject}: an explorer; {rows}", on_whom, "one joins")
    assert_never(hold)
