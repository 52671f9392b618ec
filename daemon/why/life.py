"""The experiment itself, and the log under it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rftd.daemon.registry import Entry
from rftd.daemon.why.scene import Phase, Scene
from rftd.daemon.why.wait import Level, Wait
from rftd.ops.errors import LogLossError
from rftd.streams.backends.sqlite.wal import HasWal
from rftd.streams.folds.spine import Spine, Status
from rftd.streams.log import EventLog
from rftd.workers.control.obstacle import ERROR, PART_MISSING, REFUSED, TRIED_AGAIN, WORKER_FAILS

SLOW_APPEND_S: Final = 5.0
"""An append takes milliseconds, on a cluster tenths of a second; this one is waited for."""
_SHOWN: Final = 5
_WANTED: Final = {
    PART_MISSING: "a part that is not installed",
    WORKER_FAILS: "a worker that ends again and again",
    REFUSED: "what its workers refuse to work without",
    ERROR: "an error in the daemon",
}
_PASSING: Final = {
    Phase.READING: (
        "reading",
        "its events: this daemon folds what the log holds of it",
        "the log",
        "the log is read to its end",
    ),
    Phase.FENCING: (
        "fencing",
        "its roles: the fences are not read back yet",
        "the log",
        "the log acknowledges and delivers them",
    ),
    Phase.DRAINING: (
        "draining",
        "its workers to finish what is under way and leave",
        "trainer and explorers",
        "about ten seconds, then they are ended",
    ),
}
"""The phases that end by themselves, each with its state, the thing it waits for, on whom, and what ends it."""


class Line(NamedTuple):
    """The experiments that run and that wait, in the order of their turns; the first `slots` of them run."""

    entries: Sequence[Entry]
    slots: int


def entry_waits(entry: Entry, line: Line) -> Iterator[Wait]:
    """The wait of an experiment that this daemon does not drive now."""
    spine = entry.spine
    if spine.status is not None and spine.status.ended:
        yield ended(spine)
    elif spine.status is Status.SUBMITTED:
        yield Wait(
            role="experiment",
            level=Level.STUCK,
            state="not_accepted",
            waiting_for="its acceptance: its submission did not end",
            on_whom="you",
            unblock=f"submit it again with the same --request-id, or: rftd cancel {entry.id}",
            since_ns=entry.submitted_ns,
        )
    else:
        yield _queued(entry, line)


def _queued(entry: Entry, line: Line) -> Wait:
    """The wait for a slot, behind the experiments before it in `line`."""
    place = line.entries.index(entry)
    if place < line.slots:
        return Wait(
            role="experiment",
            level=Level.WAITS,
            state="taken_up",
            waiting_for="this daemon to take it up",
            on_whom="supervisor",
            unblock="nothing to do: within a second",
            since_ns=entry.spine.status_ns,
        )
    ahead = line.entries[:place]
    holders = line.entries[: line.slots]
    # A paused experiment keeps its slot, so a queue behind paused ones alone moves only if a person acts.
    stuck = all(each.status is Status.PAUSED for each in holders)
    names = [f"{each.name} ({_place(each, entry)})" for each in ahead]
    some = ", ".join(each.name for each in holders[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    number = 1 + sum(each.status is Status.QUEUED for each in ahead)
    which = f", number {number} in the queue" if entry.status is Status.QUEUED and len(ahead) > 1 else ""
    slots = f" ({line.slots} slots)" if line.slots > 1 else ""
    return Wait(
        role="experiment",
        level=Level.STUCK if stuck else Level.WAITS,
        state="queued",
        waiting_for=f"its turn{slots}{which}, behind {', '.join(names[:_SHOWN])}{more}",
        on_whom=some,
        unblock=_unblock(entry, line),
        since_ns=entry.spine.status_ns,
    )


def decided_elsewhere(entry: Entry) -> Wait:
    """An experiment as a daemon sees it that does not decide and has no worker of it."""
    return Wait(
        role="experiment",
        level=Level.WAITS,
        state="decided_elsewhere",
        waiting_for="a daemon that trains and decides whose turn it is; this one only starts explorers",
        on_whom="the daemon with --roles trainer",
        unblock="rftd why of that daemon says more; without one: rftd serve --roles trainer, on the same log",
        since_ns=entry.spine.status_ns,
    )


def waits_of_log(log: EventLog) -> Iterator[Wait]:
    """A wait of the log although it takes appends: a reader keeps its write-ahead file from being emptied."""
    blocked = log.blocked if isinstance(log, HasWal) else None
    if blocked is not None:
        yield Wait(
            role="log",
            level=Level.WORKS,
            state="wal_blocked",
            waiting_for=f"{blocked.who} to end a transaction: the write-ahead file has {blocked.size_bytes >> 20} MiB",
            on_whom=blocked.who,
            unblock="end that process, or its transaction; appends go on",
        )


def broken_down(reason: str, since_ns: int) -> Wait:
    """An experiment whose run an error ended before it could be decided on; it is taken up anew after a while."""
    return Wait(
        role="experiment",
        level=Level.STUCK,
        state=ERROR,
        waiting_for=f"being taken up anew after an error of its run: {reason}",
        on_whom="supervisor",
        unblock="it is tried again by itself; see the daemon's log for where the error was raised",
        since_ns=since_ns,
    )


def untold(reason: str) -> Wait:
    """The error that the answer itself met, in place of the rest of it."""
    return Wait(
        role="daemon",
        level=Level.STUCK,
        state=ERROR,
        waiting_for=f"nothing: the rest cannot be told, for what was asked raised {reason}",
        on_whom="you",
        unblock="correct the part that raised it",
    )


def _place(other: Entry, entry: Entry) -> str:
    priority = other.spine.priority
    shown = other.status is Status.QUEUED and priority != entry.spine.priority
    return f"{other.status}, priority {priority}" if shown else f"{other.status}"


def _unblock(entry: Entry, line: Line) -> str:
    """The events and commands that would bring the experiment nearer to its turn."""
    holders = line.entries[: line.slots]
    place = line.entries.index(entry)
    paused = [each.name for each in holders if each.status is Status.PAUSED]
    ends = f"{'one of them' if line.slots > 1 else holders[0].name} ends"
    if len(paused) == len(holders):
        ends = f"rftd resume {paused[0]}, or cancel it"
    elif paused:
        ends += f"; {paused[0]} is paused and keeps its slot: rftd resume {paused[0]}, or cancel it"
    before = [each for each in line.entries[:place] if each.status is Status.QUEUED]
    if before and entry.status is Status.QUEUED:
        ends += f"; to pass {before[0].name}: rftd prioritize {entry.name} {before[0].spine.priority + 1}"
    return ends


def ended(spine: Spine) -> Wait:
    """The end of an experiment, with its reason."""
    assert spine.status is not None
    bad = spine.status in (Status.FAILED, Status.REJECTED)
    reason = ": ".join(part for part in (spine.code, spine.reason) if part)
    return Wait(
        role="experiment",
        level=Level.STUCK if bad else Level.DONE,
        state=spine.status.value,
        waiting_for=reason,
        on_whom="you" if bad else "",
        unblock=f"rftd explain {spine.code}" if spine.code else "",
        since_ns=spine.status_ns,
    )


def lost_wait(error: LogLossError) -> Wait:
    """An experiment that is stopped since the log has lost what survivors remember."""
    return Wait(
        role="experiment",
        level=Level.STUCK,
        state="log_loss",
        waiting_for=f"a decision: {error.code}: {error.what}",
        on_whom="you",
        unblock=error.fix or "",
    )


def experiment_wait(scene: Scene) -> Wait:
    """An experiment that this daemon drives."""
    spine = scene.state.spine
    if spine.status is not None and spine.status.ended:
        return ended(spine)
    if (passing := _PASSING.get(scene.phase)) is not None:
        state, what, on_whom, unblock = passing
        return Wait(
            role="experiment", level=Level.WAITS, state=state, waiting_for=what, on_whom=on_whom, unblock=unblock
        )
    if spine.status is Status.PAUSED and spine.cause:
        return obstructed(spine)
    if spine.status is Status.PAUSED:
        why = f": {spine.reason}" if spine.reason else ""
        return Wait(
            role="experiment",
            level=Level.STUCK,
            state="paused",
            waiting_for=f"being resumed; it was paused by a command{why}",
            on_whom="you",
            unblock=f"rftd resume {scene.name}",
            since_ns=spine.status_ns,
        )
    return Wait(
        role="experiment", level=Level.WORKS, state="running", waiting_for=_progress(spine), since_ns=spine.status_ns
    )


def wanted(cause: str) -> str:
    """The thing that an experiment paused for an obstacle waits for, in a word or two."""
    return _WANTED.get(cause, "space")


def obstructed(spine: Spine) -> Wait:
    """A pause that ends by itself, once the obstacle is gone."""
    # The event has one field for both; `transitions.paused_for` and the controller write it in this form.
    reason, _, fix = spine.reason.partition("; fix: ")
    return Wait(
        role="experiment",
        level=Level.STUCK,
        state=spine.cause,
        waiting_for=f"{wanted(spine.cause)}: {reason}",
        on_whom="you",
        unblock=f"{fix}; tried again by itself, at once with rftd resume" if spine.cause in TRIED_AGAIN else fix,
        since_ns=spine.status_ns,
    )


def _progress(spine: Spine) -> str:
    if spine.spec is None or spine.stage < 0:
        return ""
    stage = spine.stage_spec()
    return f"stage {stage.name}, step {_executed(spine)} of {spine.last_version}"


def _executed(spine: Spine) -> int:
    """Steps done; those of the shared history, until the first trainer of a fork has taken it up."""
    # Before its first `generation.started` a fork has executed nothing itself; `furthest` counts the shared steps.
    return spine.version if spine.generation >= 0 else spine.furthest


def log_wait(scene: Scene) -> Wait | None:
    """The log, if it takes no appends."""
    if scene.failure is not None:
        return Wait(
            role="log",
            level=Level.STUCK,
            state=scene.failure.code,
            waiting_for=scene.failure.what,
            on_whom="you",
            unblock=scene.failure.fix or "see the daemon's log",
        )
    if scene.append_s > SLOW_APPEND_S:
        return Wait(
            role="log",
            level=Level.STUCK,
            state="append",
            waiting_for=f"the acknowledgement of an append, for {scene.append_s:.0f} s",
            on_whom="the log",
            unblock="its disk or its brokers answer; see /readyz?verbose",
        )
    return None
