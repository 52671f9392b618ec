"""The dispatcher and the evaluations: why nothing more is given out. Follows `rftd.workers.dispatcher`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rftd.daemon.why.scene import Scene
from rftd.daemon.why.wait import Level, Wait
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.spec import StageSpec
from rftd.workers.dispatcher.collecting import explored
from rftd.workers.dispatcher.evaluation import due_evals, eval_id
from rftd.workers.dispatcher.isolation import Isolation
from rftd.workers.dispatcher.leasing import Credits, next_hold
from rftd.workers.dispatcher.windows import Held, Hold
from rftd.workers.planner.planner import view_of


def dispatcher_wait(scene: Scene) -> Wait:
    """Of an experiment that runs, in a stage that is under way."""
    state, spine = scene.state, scene.state.spine
    stage = spine.stage_spec()
    if stage.kind == "train":
        return _of(Level.DONE, "no_rollouts", f"stage {stage.name} trains on a dataset")
    if explored(state, stage):
        if state.groups.to_close:
            return _of(Level.WORKS, "closes_groups", f"closes {state.groups.to_close} groups of the stage")
        return _of(Level.DONE, "stage_planned", "every step of the stage is planned")
    explorers = _explorers(scene)
    if not explorers:
        return _of(
            Level.WAITS if scene.starts("explorer") else Level.STUCK,
            "explorers",
            "an explorer: none has joined, or none is heard of",
            "fleet" if scene.starts("explorer") else "you",
            "one joins" if scene.starts("explorer") else scene.joins_by("explorer"),
        )
    isolation = Isolation(state, stage, explorers)
    hold = next_hold(state, stage, Credits(state, isolation.others, stage.algorithm.repeat_times))
    view = view_of(state, stage)
    if hold.kind is Hold.POLICY:
        planned, waiting, flying = view.planned_experiences, view.waiting_experiences, view.inflight_rollouts
        counts = f"{planned} planned, {waiting} waiting, {flying} in flight"
        bound = f"max_staleness {stage.policy.max_staleness_versions}, {stage.policy.max_inflight_batches} batches"
        what = f"the policy to admit a group: {counts} ({stage.policy.kind}: {bound} ahead)"
        return _of(Level.WAITS, "policy", what, "trainer", f"step {spine.version + 1} is executed")
    if hold.kind in _AT_SYNC_POINT:
        return _at_sync_point(scene, stage, hold)
    if hold.kind is Hold.CREDITS:
        rollouts = sum(len(lease.rollouts) for lease in state.groups.leases.values())
        what = f"a free place: {len(explorers)} explorers have {rollouts} rollouts leased"
        if isolation.suspects:
            apart = len(explorers) - len(isolation.others)
            what += f"; {apart} of them are kept for {isolation.suspects} tasks with which workers died, one by one"
        return _of(Level.WAITS, "credits", what, "explorers", "rollouts end")
    return _of(Level.WORKS, "leases", "gives out groups")


_AT_SYNC_POINT: Final = frozenset({Hold.SYNC_POINT, Hold.ANSWER, Hold.WEIGHTS})


def _at_sync_point(scene: Scene, stage: StageSpec, hold: Held) -> Wait:
    """Explorers are between two windows, or before the first one."""
    spine = scene.state.spine
    where = f"sync point before window {hold.window} of stage {stage.name}: " if hold.window >= 0 else ""
    if hold.kind is Hold.SYNC_POINT:
        what = f"{where}{scene.state.groups.to_close} groups under way, before explorers take weights"
        return _of(Level.WAITS, "sync_point", what, "explorers", "they are finished")
    limit = f"sync_timeout ({stage.sync.timeout_s:g} s) passes" if hold.waits_for_trainer else ""
    overdue = spine.overdue.get((spine.stage, hold.window))
    if overdue is not None:
        limit = ""
    if hold.kind is Hold.ANSWER:
        what = f"{where}the trainer's answer: it was asked for newer weights"
        ends = "it answers after the step under way, or at once if it has none"
    else:
        what = f"{where}weight version {hold.version}, on which the next group must begin"
        ends = "it is trained and published"
    if overdue == -1:
        bound = stage.policy.max_staleness_versions
        what += f"; sync_timeout has passed, and nothing older may be trained (max_staleness {bound})"
    return _of(Level.WAITS, hold.kind.value, what, "trainer", f"{ends}, or {limit}" if limit else ends)


def eval_waits(scene: Scene) -> Iterator[Wait]:
    """The oldest evaluation that is due."""
    state, spine = scene.state, scene.state.spine
    stage = spine.stage_spec()
    due = list(due_evals(state, stage))
    if not due:
        return
    version, taskset = due[0]
    spec = stage.evals[taskset]
    more = f" ({len(due) - 1} more are due)" if len(due) > 1 else ""
    subject = f"weight version {version} on {spec.name}{more}"
    evaluation = state.evals.open.get(eval_id(state.experiment, spine.stage, version, taskset))
    scored = evaluation.rows_scored() if evaluation is not None else 0
    rows = f"{scored} of {spec.rows} rows are scored"
    if state.weights.of_version(version, spine) is None:
        yield _eval(Level.WAITS, "weights", f"{subject}: it is not announced", "trainer", "it is published")
    elif evaluation is not None and evaluation.leases:
        yield _eval(Level.WORKS, "scores", f"{subject}: {rows}", "explorers", "every row is scored")
    elif not _explorers(scene):
        on_whom = "fleet" if scene.starts("explorer") else "you"
        yield _eval(Level.WAITS, "explorers", f"{subject}: an explorer; {rows}", on_whom, "one joins")
    else:
        yield _eval(Level.WAITS, "explorer_free", f"{subject}: an idle explorer; {rows}", "explorers", "one is free")


def _explorers(scene: Scene) -> list[WorkerStarted]:
    return [each for each in scene.state.roster.explorers() if not scene.liveness.unheard(each.worker, scene.now_s)]


def _of(level: Level, state: str, what: str, on_whom: str = "", unblock: str = "") -> Wait:
    return Wait(role="dispatcher", level=level, state=state, waiting_for=what, on_whom=on_whom, unblock=unblock)


def _eval(level: Level, state: str, what: str, on_whom: str, unblock: str) -> Wait:
    return Wait(role="evaluation", level=level, state=state, waiting_for=what, on_whom=on_whom, unblock=unblock)
