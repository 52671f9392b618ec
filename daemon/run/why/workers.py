"""The trainer and the explorers: the states in their heartbeats, and the fleet's view of their processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rftd.daemon.run.why.run_snapshot import Process, RunSnapshot
from rftd.daemon.run.why.wait import Wait
from rftd.ops import limits
from rftd.ops.words import Level, Words
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.folds.worker_state import WorkerState
from rftd.streams.spec.split_submission import HALF_BY_ROLE
from rftd.workers.control.hold import Paused

_SILENT_AFTER_S: Final = 3 * limits.HEARTBEAT_INTERVAL_S
"""Seconds without a heartbeat before a worker is shown as quiet, well before it counts as lost."""
_REPORTED_DELAY_S: Final = 0.05
"""Shortest reported delay of a process start, in seconds."""
_ACTIVITY_BY_STATE: Final[dict[str, str]] = {
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
"""Words for the heartbeat states of working workers. An unknown state, from a newer release, is shown as it is."""
_OPENING: Final = (WorkerState.LOAD, WorkerState.OPEN_ENGINE)
"""Heartbeat states of a worker before joining."""
_WAIT_BY_STATE: Final[dict[str, tuple[str, str, str]]] = {
    WorkerState.WAIT_BATCH: ("the plan of its next step", "planner", "batch.planned"),
    WorkerState.WAIT_TASKS: ("tasks", "dispatcher", "it gets a group"),
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
        "readable weights: loading the newest weights failed; its log has the reason",
        "trainer",
        "it publishes new ones",
    ),
}
"""Words for the heartbeat states of waiting workers. `paused` has the deciders' words."""


def doing_of(state: str) -> str:
    """Returns the words for a heartbeat's state, to follow the worker's name or `it`."""
    if state in _WAIT_BY_STATE:
        return f"waits for {_WAIT_BY_STATE[state][0]}"
    return _ACTIVITY_BY_STATE.get(state, "is paused" if state == WorkerState.PAUSED else state)


def worker_waits(snapshot: RunSnapshot) -> Iterator[Wait]:
    """Yields one wait for each live worker, and one for each slot without a worker."""
    live = list(snapshot.state.roster.live.values())
    for started in sorted(live, key=lambda worker: (worker.role, worker.slot, worker.worker)):
        yield Wait(
            started.role, *_live_words(snapshot, started), slot=_explorer_slot(started.slot), worker=str(started.worker)
        )
    occupied_slots = {(worker.role, worker.slot) for worker in live}
    opening = list(opening_waits(snapshot))
    yield from opening
    heard = {wait.worker for wait in opening}
    for process in snapshot.processes:
        # A worker with heartbeats is reported by them; the fleet knows the slots without a joined worker.
        if (process.role, process.slot) not in occupied_slots and str(process.worker) not in heard:
            yield Wait(process.role, *_absent_words(snapshot, process), slot=_explorer_slot(process.slot))
    joined = {worker.role for worker in live}
    for role, half in HALF_BY_ROLE.items():
        if role in joined or snapshot.starts(role):
            continue
        if half not in snapshot.state.spine.halves:
            waiting_for = (
                f"{'an' if role == 'explorer' else 'a'} {role}: the half with mode: {half} has not been submitted"
            )
            yield Wait(role, "half_missing", waiting_for, "you", snapshot.joins_by(role), Level.STUCK)
        # A dispatcher without explorers has its own hold; without a trainer only the planner waits, for
        # `generation.started`, and does not know why none comes.
        elif role == "trainer":
            waiting_for = "a trainer: none has joined, and this daemon does not start one"
            yield Wait(role, "not_joined", waiting_for, "you", snapshot.joins_by(role), Level.STUCK)


def largest_use(snapshot: RunSnapshot) -> dict[tuple[str, str], int]:
    """Returns the resident bytes of the largest living worker by role and stage, from the last heartbeats."""
    used_bytes: dict[tuple[str, str], int] = {}
    if snapshot.state.spine.stage >= 0:
        stage = snapshot.state.spine.stage_spec().name
        for beat in snapshot.liveness.latest.values():
            if beat.worker in snapshot.state.roster.live and beat.memory_bytes:
                used_bytes[beat.role, stage] = max(used_bytes.get((beat.role, stage), 0), beat.memory_bytes)
    return used_bytes


def resident_bytes(snapshot: RunSnapshot) -> int:
    """Returns the resident memory of all living workers at their last heartbeats, in bytes."""
    live = snapshot.state.roster.live
    return sum(beat.memory_bytes for beat in snapshot.liveness.latest.values() if beat.worker in live)


def opening_waits(snapshot: RunSnapshot) -> Iterator[Wait]:
    """Yields one wait for each worker with heartbeats and not joined yet, with the start of its activity."""
    roster = snapshot.state.roster
    ordered = {process.worker: process for process in snapshot.processes}
    for beat in sorted(snapshot.liveness.latest.values(), key=lambda beat: (beat.role, beat.slot, beat.worker)):
        process = ordered.get(beat.worker)
        quiet_s = snapshot.liveness.quiet_s(beat.worker, snapshot.now_s) or 0.0
        # An ended process sends nothing more; for a process on another machine, silence is the only sign.
        over = quiet_s > _SILENT_AFTER_S if process is None else process.pid is None or process.joined
        if beat.worker in roster.live or beat.worker in roster.gone or beat.state not in _OPENING or over:
            continue
        process_note = "" if process is None else f" (process {process.pid})"
        quiet = f"; its last heartbeat came {quiet_s:.0f} s ago" if quiet_s > _SILENT_AFTER_S else ""
        bound = "" if process is None else f", or is killed {process.start_timeout_s:g} s after its start"
        since_ns = snapshot.now_ns - int(snapshot.liveness.state_s(beat.worker, snapshot.now_s) * 1e9)
        yield Wait(
            beat.role,
            beat.state,
            f"{_ACTIVITY_BY_STATE[beat.state]}{process_note}{quiet}",
            "its process",
            f"it joins and gets work{bound}; see rftd logs",
            Level.WORKS,
            slot=_explorer_slot(beat.slot),
            worker=str(beat.worker),
            since_ns=since_ns,
        )


def _explorer_slot(slot: int) -> int | None:
    """Returns the slot of an explorer; None for a trainer."""
    return slot if slot >= 0 else None


def _live_words(snapshot: RunSnapshot, started: WorkerStarted) -> Words:
    """Returns the words for a joined worker, by its last heartbeat."""
    beat = snapshot.liveness.latest.get(started.worker)
    quiet_s = snapshot.liveness.quiet_s(started.worker, snapshot.now_s)
    if quiet_s is not None and quiet_s > _SILENT_AFTER_S:
        waiting_for = f"a heartbeat; the last came {quiet_s:.0f} s ago"
        ends = f"its next heartbeat; after {snapshot.liveness.lost_after_s:g} s without one it is restarted"
        return Words("no_heartbeat", waiting_for, "its process", ends, Level.STUCK)
    if beat is None:
        return Words("first_heartbeat", "its first heartbeat", "its process", "that heartbeat arrives")
    if beat.state == WorkerState.PAUSED:
        words = _pause_words(snapshot)
    elif beat.state in _WAIT_BY_STATE:
        words = Words(beat.state, *_WAIT_BY_STATE[beat.state])
    else:
        words = Words(beat.state, _ACTIVITY_BY_STATE.get(beat.state, beat.state), level=Level.WORKS)
    leases = f" on {len(beat.leases)} leases" if beat.leases else ""
    version = f" (weight version {beat.version})" if beat.version >= 0 else ""
    level = Level.STUCK if beat.state == WorkerState.LOAD_FAILED else words.level
    return words._replace(waiting_for=f"{words.waiting_for}{leases}{version}", level=level)


def _pause_words(snapshot: RunSnapshot) -> Words:
    """Returns the words for the experiment's pause."""
    return Paused().told(snapshot.state, snapshot.now_ns)


def _absent_words(snapshot: RunSnapshot, process: Process) -> Words:
    """Returns the words for a slot whose worker has not joined: paused, starting, delayed after failures, or prevented
    by an obstacle.
    """
    if process.pid is None and snapshot.state.spine.cause:
        return _pause_words(snapshot)  # nothing is started while an obstacle lasts: it would fail at once
    before = f"; the previous one: {process.last_why}" if process.last_why else ""
    if process.pid is None and process.waits is not None:
        return process.waits._replace(waiting_for=f"{process.waits.waiting_for}{before}")
    if process.pid is None:
        if not process.restarts and process.start_in_s < _REPORTED_DELAY_S:
            return Words("restarting", f"its process to start{before}", "fleet", "it is started at once")
        waiting_for = f"its process to start, attempt {process.restarts + 1}{before}"
        ends = (
            f"in {max(0.0, process.start_in_s):.1f} s; after {limits.RESTARTS_IN_A_ROW} restarts without progress the "
            "experiment pauses, and one more is tried every minute"
        )
        return Words("restarting", waiting_for, "fleet", ends, Level.STUCK if process.restarts else Level.WAITS)
    if process.joined:
        ends = f"it exits, or is killed after {limits.DRAIN_TIMEOUT_S:g} s"
        return Words("leaving", f"process {process.pid} to exit after it left", "its process", ends)
    waiting_for = f"process {process.pid} to join: it loads its libraries and its model{before}"
    ends = f"it joins, or is killed after {process.start_timeout_s:g} s; see rftd logs"
    return Words("starting", waiting_for, "its process", ends)
