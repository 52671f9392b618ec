"""The trainer and the explorers: what their heartbeats say, and what the fleet knows of their processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rftd.daemon.run.why.scene import Process, Scene
from rftd.daemon.run.why.wait import Wait
from rftd.ops import limits
from rftd.ops.words import Level, Words
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.folds.worker_state import WorkerState
from rftd.streams.spec.split_submission import HALF_OF
from rftd.workers.control.hold import Paused

_QUIET_S: Final = 3 * limits.HEARTBEAT_INTERVAL_S
"""A worker without a heartbeat for this long is shown as quiet, well before it counts as lost."""
_AT_ONCE_S: Final = 0.05
"""A shorter delay before a process is started is nothing to wait for."""
_WORKS: Final[dict[str, str]] = {
    WorkerState.LOAD: "loads its model and its state",
    WorkerState.OPEN_ENGINE: "opens its engine",
    WorkerState.TAKE_UP: "resumes from the newest good checkpoint",
    WorkerState.ASSEMBLE: "reads the records of its next batch",
    WorkerState.BUSY: "works",
    WorkerState.PUBLISH: "publishes weights",
    WorkerState.CHECKPOINT: "writes a checkpoint",
    WorkerState.LOAD_WEIGHTS: "loads weights",
    WorkerState.DRAIN: "finishes its current work, then leaves",
}
"""Heartbeats of a worker that works. One that a newer release sends is shown as it is."""
_OPENING: Final = (WorkerState.LOAD, WorkerState.OPEN_ENGINE)
"""Those of one that has not joined yet."""
_WAITS: Final[dict[str, tuple[str, str, str]]] = {
    WorkerState.WAIT_BATCH: ("the plan of its next step", "planner", "batch.planned"),
    WorkerState.WAIT_TASKS: ("tasks", "dispatcher", "it is given a group"),
    WorkerState.WAIT_WEIGHTS: ("the first weights that it can load", "trainer", "weights.published"),
    WorkerState.WAIT_VERSION: (
        "the weight version that its rollouts must start with",
        "trainer",
        "it is published and loaded",
    ),
    WorkerState.WAIT_TURN: ("its turn on the device", "the other side", "its rollouts or its step end"),
    WorkerState.WAIT_SERVICE: (
        "the model's service, which does not answer",
        "the service",
        "it answers; requests are retried",
    ),
    WorkerState.LOAD_FAILED: (
        "readable weights: loading the last ones failed; its log says why",
        "trainer",
        "it publishes new ones",
    ),
}
"""Those of one that waits. `paused` is told as the deciders tell it."""


def doing_of(state: str) -> str:
    """The words for the state of a heartbeat, after the worker's name or `it`."""
    if state in _WAITS:
        return f"waits for {_WAITS[state][0]}"
    return _WORKS.get(state, "is paused" if state == WorkerState.PAUSED else state)


def worker_waits(scene: Scene) -> Iterator[Wait]:
    """One for each live worker, and one for each place that has none."""
    live = list(scene.state.roster.live.values())
    for started in sorted(live, key=lambda each: (each.role, each.slot, each.worker)):
        yield Wait(started.role, *_live(scene, started), slot=_slot(started.slot), worker=str(started.worker))
    places = {(each.role, each.slot) for each in live}
    opening = list(opening_waits(scene))
    yield from opening
    heard = {each.worker for each in opening}
    for process in scene.processes:
        # A worker that is heard of speaks for itself; the fleet knows of places that nobody has joined from.
        if (process.role, process.slot) not in places and str(process.worker) not in heard:
            yield Wait(process.role, *_absent(scene, process), slot=_slot(process.slot))
    joined = {each.role for each in live}
    for role, half in HALF_OF.items():
        if role in joined or scene.starts(role):
            continue
        if half not in scene.state.spine.halves:
            what = f"{'an' if role == 'explorer' else 'a'} {role}: the half with mode: {half} has not been submitted"
            yield Wait(role, "half_missing", what, "you", scene.joins_by(role), Level.STUCK)
        # A dispatcher without explorers holds, and its hold says so; without a trainer only the planner waits, for
        # `generation.started`, and does not know why none comes.
        elif role == "trainer":
            what = "a trainer: none has joined, and this daemon does not start one"
            yield Wait(role, "not_joined", what, "you", scene.joins_by(role), Level.STUCK)


def largest_use(scene: Scene) -> dict[tuple[str, str], int]:
    """The resident memory, in bytes, of the largest living worker by role and stage, as last heartbeats tell it."""
    used_bytes: dict[tuple[str, str], int] = {}
    if scene.state.spine.stage >= 0:
        stage = scene.state.spine.stage_spec().name
        for beat in scene.liveness.latest.values():
            if beat.worker in scene.state.roster.live and beat.memory_bytes:
                used_bytes[beat.role, stage] = max(used_bytes.get((beat.role, stage), 0), beat.memory_bytes)
    return used_bytes


def opening_waits(scene: Scene) -> Iterator[Wait]:
    """One for each worker that is heard of and has not joined yet, with the time since when it does what it does."""
    roster = scene.state.roster
    ordered = {process.worker: process for process in scene.processes}
    for beat in sorted(scene.liveness.latest.values(), key=lambda each: (each.role, each.slot, each.worker)):
        process = ordered.get(beat.worker)
        quiet_s = scene.liveness.quiet_s(beat.worker, scene.now_s) or 0.0
        # A process that ended says nothing more; of one that another machine runs, silence is all that tells it.
        over = quiet_s > _QUIET_S if process is None else process.pid is None or process.joined
        if beat.worker in roster.live or beat.worker in roster.gone or beat.state not in _OPENING or over:
            continue
        which = "" if process is None else f" (process {process.pid})"
        quiet = f"; its last heartbeat came {quiet_s:.0f} s ago" if quiet_s > _QUIET_S else ""
        bound = "" if process is None else f", or is killed {process.start_timeout_s:g} s after its start"
        since_ns = scene.now_ns - int(scene.liveness.state_s(beat.worker, scene.now_s) * 1e9)
        yield Wait(
            beat.role,
            beat.state,
            f"{_WORKS[beat.state]}{which}{quiet}",
            "its process",
            f"it joins and is given work{bound}; see rftd logs",
            Level.WORKS,
            slot=_slot(beat.slot),
            worker=str(beat.worker),
            since_ns=since_ns,
        )


def _slot(slot: int) -> int | None:
    return slot if slot >= 0 else None


def _live(scene: Scene, started: WorkerStarted) -> Words:
    beat = scene.liveness.latest.get(started.worker)
    quiet_s = scene.liveness.quiet_s(started.worker, scene.now_s)
    if quiet_s is not None and quiet_s > _QUIET_S:
        what = f"a heartbeat; the last came {quiet_s:.0f} s ago"
        ends = f"its next heartbeat; after {scene.liveness.lost_after_s:g} s without one it is restarted"
        return Words("no_heartbeat", what, "its process", ends, Level.STUCK)
    if beat is None:
        return Words("first_heartbeat", "its first heartbeat", "its process", "that heartbeat arrives")
    if beat.state == WorkerState.PAUSED:
        said = _paused(scene)
    elif beat.state in _WAITS:
        said = Words(beat.state, *_WAITS[beat.state])
    else:
        said = Words(beat.state, _WORKS.get(beat.state, beat.state), level=Level.WORKS)
    leases = f" on {len(beat.leases)} leases" if beat.leases else ""
    version = f" (weight version {beat.version})" if beat.version >= 0 else ""
    level = Level.STUCK if beat.state == WorkerState.LOAD_FAILED else said.level
    return said._replace(waiting_for=f"{said.waiting_for}{leases}{version}", level=level)


def _paused(scene: Scene) -> Words:
    return Paused().told(scene.state, scene.now_ns)


def _absent(scene: Scene, process: Process) -> Words:
    """The words for a place that nobody has joined from."""
    if process.pid is None and scene.state.spine.cause:
        return _paused(scene)  # nothing is started while an obstacle is in the way: it would meet it at once
    before = f"; the previous one: {process.last_why}" if process.last_why else ""
    if process.pid is None and process.waits is not None:
        return process.waits._replace(waiting_for=f"{process.waits.waiting_for}{before}")
    if process.pid is None:
        if not process.restarts and process.start_in_s < _AT_ONCE_S:
            return Words("restarting", f"its process to start{before}", "fleet", "it is started at once")
        what = f"its process to start, attempt {process.restarts + 1}{before}"
        ends = (
            f"in {max(0.0, process.start_in_s):.1f} s; after {limits.RESTARTS_IN_A_ROW} restarts without progress the "
            "experiment pauses, and one more is tried every minute"
        )
        return Words("restarting", what, "fleet", ends, Level.STUCK if process.restarts else Level.WAITS)
    if process.joined:
        ends = f"it exits, or is killed after {limits.DRAIN_TIMEOUT_S:g} s"
        return Words("leaving", f"process {process.pid} to exit after it left", "its process", ends)
    what = f"process {process.pid} to join: it loads its libraries and its model{before}"
    ends = f"it joins, or is killed after {process.start_timeout_s:g} s; see rftd logs"
    return Words("starting", what, "its process", ends)
