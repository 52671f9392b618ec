"""The states of an experiment's life, as waits: ended, in the queue, being taken up, paused, running."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rftd.daemon.run.registry import Entry
from rftd.daemon.run.why.pause import RELEASED_PAUSE, pause_of
from rftd.daemon.run.why.run_snapshot import Phase, RunSnapshot
from rftd.daemon.run.why.wait import Wait
from rftd.ops.errors import LogLossError, OtherLogError
from rftd.ops.words import Level, Words
from rftd.streams.folds.signal import SOLVED
from rftd.streams.folds.spine import Spine, Status
from rftd.streams.spec.split_submission import TRAIN, has_tasks
from rftd.workers.control.hold import ERROR, RETRIED_CAUSES, Paused, ends_by_itself, wanted

_MAX_NAMED: Final = 5
"""Maximum number of earlier experiments named in a wait for a slot."""
_PASSING: Final = {
    Phase.READING: Words(
        "reading", "this daemon to read its events from the log", "the log", "the log is read to its end"
    ),
    Phase.LOSS_CHECK: Words(
        "comparing",
        "a check of the log against checkpoints, snapshots, fences and living workers",
        "the log",
        "its newest records are read",
    ),
    Phase.FENCING: Words(
        "fencing",
        "this daemon's right to decide: its fences have not been read back yet",
        "the log",
        "the log acknowledges and returns them",
    ),
    Phase.DRAINING: Words(
        "draining",
        "its workers to finish their current work and leave",
        "trainer and explorers",
        "they leave, or are killed after about ten seconds",
    ),
}
"""Words for the phases of a run that end without anybody's action."""


class Line(NamedTuple):
    """Running and queued experiments, in the order of their turns; the first `slots` of them run."""

    entries: Sequence[Entry]
    """The experiments, the running ones first."""
    slots: int
    """Number of experiments that may run at once."""


def _life_wait(
    spine: Spine | None, state: str, waiting_for: str, on_whom: str, ends: str, level: Level = Level.WAITS
) -> Wait:
    """Returns a wait of the role `experiment`, since the last change of its status."""
    since_ns = None if spine is None else spine.status_ns
    return Wait("experiment", state, waiting_for, on_whom, ends, level, since_ns=since_ns)


def ended(spine: Spine) -> Wait:
    """Returns the end of an experiment, with its reason."""
    assert spine.status is not None
    bad = spine.status in (Status.FAILED, Status.REJECTED)
    reason = ": ".join(text for text in (spine.code, spine.reason) if text)
    if (lost := spine.signal.lost) is not None:
        learnt = (
            f"solved since step {lost.step}: {lost.reason}"
            if lost.cause == SOLVED
            else f"nothing was learnt from step {lost.step} on: {lost.cause}: {lost.reason}; fix: {lost.fix}"
        )
        reason = f"{reason}; {learnt}" if reason else learnt
    ends = f"rftd explain {spine.code}" if spine.code else ""
    return _life_wait(spine, spine.status.value, reason, "you" if bad else "", ends, Level.STUCK if bad else Level.DONE)


def driven(snapshot: RunSnapshot) -> Wait:
    """Returns the life of an experiment driven by this daemon."""
    spine = snapshot.state.spine
    if spine.ended:
        return ended(spine)
    if snapshot.phase in _PASSING:
        return Wait("experiment", *_PASSING[snapshot.phase])
    if spine.status is not Status.PAUSED:
        return _life_wait(spine, "running", _progress_words(spine), "", "", Level.WORKS)
    pause = pause_of(snapshot)
    standing = "" if pause is None else f"; {pause.words}"
    if not spine.cause:
        waiting_for = f"{_pause_by_command(spine)}{standing}{_users_note(spine, answered=True)}"
        return _life_wait(spine, "paused", waiting_for, "you", Paused().told(snapshot.state, 0).unblock, Level.STUCK)
    # The event has one field for both; `transitions.paused_for` and the controller write it in this form.
    reason, _, fix = spine.reason.partition("; fix: ")
    again = "; retried automatically, or at once with rftd resume" if spine.cause in RETRIED_CAUSES else ""
    return _life_wait(spine, spine.cause, f"{wanted(spine.cause)}: {reason}{standing}", "you", fix + again, Level.STUCK)


def _pause_by_command(spine: Spine) -> str:
    """Returns the words for a pause by a person, with the person's reason."""
    return f"a resume; it was paused by a command{f': {spine.reason}' if spine.reason else ''}"


def _users_note(spine: Spine, *, answered: bool) -> str:
    """Returns the effect of a pause on a served experiment's users; empty for other experiments."""
    if spine.spec is None or all(stage.serving is None for stage in spine.spec.stages):
        return ""
    return "; its users are still answered, until its workers are released" if answered else "; its users get no answer"


def released(entry: Entry) -> Wait:
    """Returns the wait of a paused experiment after its workers left."""
    spine = entry.spine
    paused = (
        f"{wanted(spine.cause)}: {spine.reason.partition('; fix: ')[0]}" if spine.cause else _pause_by_command(spine)
    )
    waiting_for = f"{paused}; {RELEASED_PAUSE.words}{_users_note(spine, answered=False)}"
    ends = f"rftd resume {shlex.quote(entry.name)}; it is queued by its priority if no slot is free"
    return _life_wait(spine, "released", waiting_for, "you", ends, Level.STUCK)


def lost_signal(spine: Spine) -> Iterator[Wait]:
    """Yields the lost learning signal of an experiment under way, or its end of learning."""
    lost = spine.signal.lost
    if lost is None or spine.ended:
        return
    solved = lost.cause == SOLVED
    waiting_for = f"{'solved' if solved else 'something to learn from,'} since step {lost.step}: {lost.reason}"
    yield Wait("signal", lost.cause, waiting_for, "you", lost.fix, Level.WORKS if solved else Level.STUCK)


def _progress_words(spine: Spine) -> str:
    """Returns stage and step in words; empty before the first stage."""
    if spine.spec is None or spine.stage < 0:
        return ""
    # Before its first `generation.started` a fork has executed nothing itself; `furthest` counts the shared steps.
    executed = spine.version if spine.generation >= 0 else spine.furthest
    return f"stage {spine.stage_spec().name}, step {executed} of {spine.last_version}"


def entry_wait(entry: Entry, line: Line) -> Wait:
    """Returns the wait of an experiment not driven by this daemon now."""
    spine = entry.spine
    if spine.ended:
        return ended(spine)
    if spine.status is Status.SUBMITTED and spine.spec and spine.spec.half == TRAIN and not has_tasks(spine.spec):
        waiting_for = "an explorer: the half with mode: explore, which names the tasks, has not been submitted"
        ends = "submit a file with mode: explore and the same project, group, name and checkpoint_root_dir"
        return Wait("experiment", "half_missing", waiting_for, "you", ends, Level.STUCK, since_ns=entry.submitted_ns)
    if spine.status is Status.SUBMITTED:
        ends = f"submit it again with the same --request-id, or: rftd cancel {entry.id}"
        waiting_for = "its acceptance: its submission was interrupted"
        return Wait("experiment", "not_accepted", waiting_for, "you", ends, Level.STUCK, since_ns=entry.submitted_ns)
    if spine.released:
        return released(entry)
    if line.entries.index(entry) < line.slots:
        return _life_wait(
            spine, "taken_up", "this daemon to start it", "supervisor", "nothing to do: it starts within a second"
        )
    return _queued(entry, line)


def _queued(entry: Entry, line: Line) -> Wait:
    """Returns the wait for a slot, behind the earlier experiments in `line`, and the ways to an earlier turn."""
    ahead = line.entries[: line.entries.index(entry)]
    holders = line.entries[: line.slots]
    before = [waiting for waiting in ahead if waiting.status is Status.QUEUED]
    queued = entry.status is Status.QUEUED
    several = line.slots > 1
    names = [f"{earlier.name} ({_status_words(earlier, entry)})" for earlier in ahead]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    number = f", number {1 + len(before)} in the queue" if queued and len(ahead) > 1 else ""
    turn = (
        f"its turn{f' ({line.slots} slots)' if several else ''}{number}, behind {', '.join(names[:_MAX_NAMED])}{more}"
    )
    # A pause that ends by itself keeps its slot, so a queue behind such pauses alone moves only by a person's action.
    paused = [holder.name for holder in holders if holder.status is Status.PAUSED and ends_by_itself(holder.spine)]
    released = [holder.name for holder in holders if holder.status is Status.PAUSED and holder.name not in paused]
    stuck = len(paused) == len(holders)
    resumes = f"see rftd why {shlex.quote(paused[0])}, or cancel it" if paused else ""
    ends = f"{'one of them' if several else holders[0].name} ends"
    if stuck:
        ends = resumes
    elif released:
        ends = f"{released[0]} is paused and gives its slot back soon"
    elif paused:
        ends += f"; {paused[0]} is paused and keeps its slot: {resumes}"
    if before and queued:
        ends += f"; to overtake {before[0].name}: rftd prioritize {entry.name} {before[0].spine.priority + 1}"
    on_whom = ", ".join(holder.name for holder in holders[:_MAX_NAMED])
    return _life_wait(entry.spine, "queued", turn, on_whom, ends, Level.STUCK if stuck else Level.WAITS)


def _status_words(earlier: Entry, experiment: Entry) -> str:
    """Returns the status of an earlier experiment, with its priority if that differs in the queue."""
    priority = earlier.spine.priority
    shown = earlier.status is Status.QUEUED and priority != experiment.spine.priority
    return f"{earlier.status}, priority {priority}" if shown else f"{earlier.status}"


def decided_elsewhere(entry: Entry) -> Wait:
    """Returns the wait of an experiment decided on by another daemon, without workers here."""
    waiting_for = "the daemon that trains and schedules it; this one only starts explorers"
    ends = "ask that daemon with rftd why; if there is none, run rftd serve --roles trainer on the same log"
    return _life_wait(entry.spine, "decided_elsewhere", waiting_for, "the daemon with --roles trainer", ends)


def broken_down(reason: str, since_ns: int) -> Wait:
    """Returns the wait of an experiment whose run ended with an error; it is taken up anew after a while."""
    waiting_for = f"a restart after an error in its run: {reason}"
    ends = "it is retried automatically; the daemon's log has the traceback"
    return Wait("experiment", ERROR, waiting_for, "supervisor", ends, Level.STUCK, since_ns=since_ns)


def lost_wait(error: LogLossError) -> Wait:
    """Returns the wait of an experiment stopped because the log lacks records remembered by survivors."""
    cause = "other_log" if isinstance(error, OtherLogError) else "log_loss"
    return _life_wait(None, cause, f"your decision: {error.code}: {error.what}", "you", error.fix or "", Level.STUCK)
