"""The trainer and the explorers: what their heartbeats say, and what the fleet knows of their processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from rftd.daemon.why.life import wanted
from rftd.daemon.why.scene import Process, Scene
from rftd.daemon.why.wait import Level, Wait
from rftd.ops import limits
from rftd.streams.events.worker import Heartbeat, WorkerStarted
from rftd.streams.split_submission import HALF_OF


class StateMeaning(NamedTuple):
    """The meaning of a heartbeat's state."""

    level: Level
    what: str
    on_whom: str = ""
    unblock: str = ""


_QUIET_S: Final = 3 * limits.HEARTBEAT_INTERVAL_S
"""A worker without a heartbeat for this long is shown as quiet, well before it counts as lost."""
_SAID: Final = {
    "load": StateMeaning(Level.WORKS, "loads its model and its state"),
    "take_up": StateMeaning(Level.WORKS, "takes up the history: loads the newest good checkpoint"),
    "wait_batch": StateMeaning(Level.WAITS, "the plan of its next step", "planner", "batch.planned"),
    "assemble": StateMeaning(Level.WORKS, "reads the records of its next batch"),
    "busy": StateMeaning(Level.WORKS, "works"),
    "publish": StateMeaning(Level.WORKS, "publishes weights"),
    "checkpoint": StateMeaning(Level.WORKS, "writes a checkpoint"),
    "paused": StateMeaning(Level.WAITS, "the experiment to be resumed", "you", "rftd resume"),
    "wait_tasks": StateMeaning(Level.WAITS, "leases", "dispatcher", "a group is given to it"),
    "wait_weights": StateMeaning(Level.WAITS, "first weights that it can load", "trainer", "weights.published"),
    "wait_version": StateMeaning(
        Level.WAITS, "the weight version on which its rollouts must begin", "trainer", "it is published and loaded"
    ),
    "wait_turn": StateMeaning(
        Level.WAITS, "its turn on the device", "the other side", "the rollouts, or the step, end"
    ),
    "load_failed": StateMeaning(
        Level.STUCK, "weights that can be read: loading them failed, its log says why", "trainer", "it publishes others"
    ),
    "load_weights": StateMeaning(Level.WORKS, "loads weights"),
    "wait_log": StateMeaning(Level.WAITS, "the log to take its events", "the log", "it has space, and answers"),
    "drain": StateMeaning(Level.WORKS, "finishes what is under way, and leaves"),
}
"""Every state of a heartbeat. One that a newer release sends is shown as it is."""


def worker_waits(scene: Scene) -> Iterator[Wait]:
    """One for each live worker, and one for each place that has none."""
    live = list(scene.state.roster.live.values())
    for started in sorted(live, key=lambda each: (each.role, each.slot, each.worker)):
        yield _live(scene, started)
    places = {(each.role, each.slot) for each in live}
    for process in scene.processes:
        # A worker that has joined speaks for itself; the fleet knows of places that nobody has joined from.
        if (process.role, process.slot) not in places:
            yield _unstarted(scene, process) if process.pid is None and scene.state.spine.cause else _absent(process)
    joined = {each.role for each in live}
    for role in ("trainer", "explorer"):
        if role in joined or scene.starts(role):
            continue
        if HALF_OF[role] not in scene.state.spine.halves:
            yield _missing(scene, role, "half_missing", f"nobody has submitted the half with mode: {HALF_OF[role]}")
        # A dispatcher without explorers holds, and its hold says so; without a trainer only the planner waits, for
        # `generation.started`, and does not know why none comes.
        elif role == "trainer":  # the dispatcher says it of explorers
            yield _missing(scene, role, "not_joined", "none has joined, and this daemon starts none")


def _live(scene: Scene, started: WorkerStarted) -> Wait:
    beat = scene.liveness.latest.get(started.worker)
    quiet_s = scene.liveness.quiet_s(started.worker, scene.now_s)
    if quiet_s is not None and quiet_s > _QUIET_S:
        lost_s = scene.liveness.lost_after_s
        return _of(
            started,
            Level.STUCK,
            "no_heartbeat",
            f"a heartbeat; the last came {quiet_s:.0f} s ago",
            "its process",
            f"it is heard of again, or after {lost_s:g} s ended and started anew",
        )
    if beat is None:
        return _of(started, Level.WAITS, "first_heartbeat", "its first heartbeat", "its process", "it is heard of")
    said = _SAID.get(beat.state, StateMeaning(Level.WORKS, beat.state))
    if beat.state == "paused" and scene.state.spine.cause:
        said = _stopped_by(scene)
    return _of(started, said.level, beat.state, _more(said, beat), said.on_whom, said.unblock)


def _missing(scene: Scene, role: str, state: str, why: str) -> Wait:
    article = "an" if role == "explorer" else "a"
    return Wait(
        role=role,
        level=Level.STUCK,
        state=state,
        waiting_for=f"{article} {role}: {why}",
        on_whom="you",
        unblock=scene.joins_by(role),
    )


def _stopped_by(scene: Scene) -> StateMeaning:
    cause = scene.state.spine.cause
    return StateMeaning(Level.WAITS, wanted(cause), "you", "that is put right; the experiment goes on by itself")


def _more(said: StateMeaning, beat: Heartbeat) -> str:
    version = f" (weight version {beat.version})" if beat.version >= 0 else ""
    leases = f" on {len(beat.leases)} leases" if beat.leases else ""
    return f"{said.what}{leases}{version}"


def _of(started: WorkerStarted, level: Level, state: str, what: str, on_whom: str, unblock: str) -> Wait:
    return Wait(
        role=started.role,
        slot=started.slot if started.slot >= 0 else None,
        worker=str(started.worker),
        level=level,
        state=state,
        waiting_for=what,
        on_whom=on_whom,
        unblock=unblock,
    )


def _unstarted(scene: Scene, process: Process) -> Wait:
    """No process is started while the experiment is paused for an obstacle: it would meet it at once."""
    said = _stopped_by(scene)
    return Wait(
        role=process.role,
        slot=process.slot if process.slot >= 0 else None,
        level=said.level,
        state="paused",
        waiting_for=said.what,
        on_whom=said.on_whom,
        unblock=said.unblock,
    )


def _absent(process: Process) -> Wait:
    slot = process.slot if process.slot >= 0 else None
    before = f"; the one before: {process.last_why}" if process.last_why else ""
    if process.pid is None and process.waits_for:
        return Wait(
            role=process.role,
            slot=slot,
            level=Level.STUCK,
            state="leftovers",
            waiting_for=process.waits_for,
            on_whom="those processes",
            unblock=f"they end: they were asked to, and are killed after {limits.LEFTOVER_GRACE_S:g} s; what does not "
            "end then hangs in the operating system, look at it with ps",
        )
    if process.pid is None:
        return Wait(
            role=process.role,
            slot=slot,
            level=Level.STUCK if process.restarts else Level.WAITS,
            state="restarting",
            waiting_for=f"its process to be started, try {process.restarts + 1}{before}",
            on_whom="fleet",
            unblock=f"in {max(0.0, process.start_in_s):.1f} s; after {limits.RESTARTS_IN_A_ROW} restarts without "
            "progress the experiment pauses for it, and tries it anew once a minute",
        )
    if process.joined:
        return Wait(
            role=process.role,
            slot=slot,
            level=Level.WAITS,
            state="leaving",
            waiting_for=f"process {process.pid}, which has left, to end",
            on_whom="its process",
            unblock=f"it ends, or is killed after {limits.DRAIN_TIMEOUT_S:g} s",
        )
    return Wait(
        role=process.role,
        slot=slot,
        level=Level.WAITS,
        state="starting",
        waiting_for=f"process {process.pid} to join: it loads its libraries and its model{before}",
        on_whom="its process",
        unblock=f"it joins, or is killed after {limits.WORKER_START_TIMEOUT_S:g} s; see rftd logs",
    )
