"""The answer: every role's wait, worst first, each with its start time; and the answer without a daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace as replace_snapshot
from typing import Final

from msgspec.structs import replace

from rftd.daemon.run.registry import Entry, find_entry
from rftd.daemon.run.why.deciders import deciders_waits
from rftd.daemon.run.why.life import driven, ended, lost_signal
from rftd.daemon.run.why.run_snapshot import Phase, Process, RunSnapshot
from rftd.daemon.run.why.token_meter import TokenMeter, work_of
from rftd.daemon.run.why.under_way import WorkUnderWay
from rftd.daemon.run.why.wait import Wait, Why, worst_first
from rftd.daemon.run.why.workers import worker_waits
from rftd.ops.clock import Clock
from rftd.ops.errors import explain
from rftd.ops.words import Level
from rftd.streams.folds.run_state import RunState, partitions_of
from rftd.streams.log.follower import Follower
from rftd.streams.log.log import EventLog, SharedLog, start_of
from rftd.streams.spec.split_submission import ROLES
from rftd.streams.sqlite.wal import HasWal
from rftd.workers.control.deciders import LastDecided
from rftd.workers.control.hold import ERROR
from rftd.workers.control.liveness import Liveness

_SLOW_APPEND_S: Final = 5.0
"""Seconds before an append is reported as slow; appends normally take milliseconds, on a cluster tenths of a second."""


def waits_of(snapshot: RunSnapshot) -> list[Wait]:
    """Returns the waits of the roles of an experiment led by this daemon, from the snapshot alone. The cost grows with
    the open groups.
    """
    waits: list[Wait] = []
    try:
        waits.extend(_waits(snapshot))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a third party's policy, if asked only now, may raise anything
        problem = f"a fix: the other roles' waits are unknown, because one of their plug-ins raised {explain(error)}"
        waits.append(Wait("daemon", ERROR, problem, "you", "fix the failing plug-in", Level.STUCK))
    return worst_first(waits)


def _waits(snapshot: RunSnapshot) -> Iterator[Wait]:
    """Yields the waits in the order: daemon, learning signal, log, deciders, workers; the last two only in phases that
    have them.
    """
    yield driven(snapshot)
    yield from lost_signal(snapshot.state.spine)
    if snapshot.failure is not None:
        ends = snapshot.failure.fix or "see the daemon's log"
        yield Wait("log", snapshot.failure.code, snapshot.failure.what, "you", ends, Level.STUCK)
    elif snapshot.append_s > _SLOW_APPEND_S:
        problem = f"has not acknowledged an append for {snapshot.append_s:.0f} s"
        yield Wait(
            "log", "append", problem, "the log", "its disk or its brokers respond; see /readyz?verbose", Level.STUCK
        )
    spine = snapshot.state.spine
    if spine.status is None or spine.ended:
        return
    # Before its fences are read back a daemon has no right to decide, so the deciders' holds mean nothing yet.
    if snapshot.phase is Phase.LEADING:
        yield from deciders_waits(snapshot)
    if snapshot.phase in (Phase.LEADING, Phase.DRAINING):
        yield from worker_waits(snapshot)


class WaitWatch:
    """Observes one experiment of this daemon, and remembers since when each role has been in its present state."""

    def __init__(
        self,
        log: EventLog,
        state: RunState,
        liveness: Liveness,
        processes: Callable[[], Sequence[Process]],
        *,
        roles: frozenset[str],
        clock: Clock,
    ) -> None:
        """`processes` returns the wanted workers as seen by the fleet; `roles` are the roles started by this daemon."""
        self._log = log
        """Log that holds the experiment."""
        self._state = state
        """State of the experiment, folded from the log."""
        self._liveness = liveness
        """Heartbeats of the experiment's workers."""
        self._processes = processes
        """Function returning the wanted workers as seen by the fleet."""
        self._roles = roles
        """Roles whose workers are started by this daemon."""
        self._clock = clock
        """Clock for the dates of waits."""
        self._since: dict[tuple[str, int | None, str | None], tuple[str, int]] = {}
        """State of each role, slot and worker, with the time of its first sighting."""
        self._meter = TokenMeter()
        """Counter of the explorers' tokens."""

    def snapshot(
        self, phase: Phase, last_decided: LastDecided | None = None, *, appends_since_s: float = 0.0
    ) -> RunSnapshot:
        """Returns the present snapshot. `last_decided` holds the last decisions, None if this daemon decides nothing;
        `appends_since_s` is the start of a pending append, 0 without one.
        """
        now_s = self._clock.monotonic_s()
        return RunSnapshot(
            state=self._state,
            liveness=self._liveness,
            now_s=now_s,
            # This machine's clock may be behind the clock of the daemon that wrote the log: cooldowns count from the
            # log's readings.
            now_ns=max(self._clock.now_ns(), self._state.spine.recorded_ns),
            said=last_decided,
            processes=self._processes(),
            roles=self._roles,
            phase=phase,
            append_s=now_s - appends_since_s if appends_since_s else 0.0,
            failure=self._log.failure,
        )

    def waits(self, snapshot: RunSnapshot) -> list[Wait]:
        """Returns the waits of each role with `since_ns`; those dated by the log keep their date over restarts of the
        daemon.
        """
        self._meter.note(snapshot)
        return self.dated(waits_of(snapshot), snapshot.now_ns)

    def under_way(self, snapshot: RunSnapshot) -> WorkUnderWay | None:
        """Returns the rollouts or held-out rows under way, with the tokens drawn meanwhile; None without any."""
        self._meter.note(snapshot)
        return work_of(snapshot, self._meter)

    def dated(self, waits: Iterable[Wait], now_ns: int) -> list[Wait]:
        """Returns the waits with `since_ns`: the time at which the role was first seen in this state, unless the log
        has given a time.
        """
        dated, states_before, self._since = list[Wait](), self._since, {}
        for wait in waits:
            role_slot = wait.role, wait.slot, wait.worker
            state, since_ns = states_before.get(role_slot, ("", 0))
            self._since[role_slot] = (wait.state, since_ns if state == wait.state else now_ns)
            dated.append(wait if wait.since_ns is not None else replace(wait, since_ns=self._since[role_slot][1]))
        return dated


def answer(entry: Entry, waits: list[Wait], *, live: bool, clock: Clock) -> Why:
    """Returns the answer for one experiment, with its status and the present time."""
    status = entry.status.value if entry.status is not None else "unknown"
    return Why(
        experiment=str(entry.id), name=entry.name, status=status, live=live, asked_ns=clock.now_ns(), waits=waits
    )


def silent_log(problem: str) -> Wait:
    """Returns the wait for a log that does not answer, so that the other waits come from records read before."""
    text = f"does not answer: {problem}; the other lines are from memory"
    return Wait("log", "away", text, "the log", "it answers again; see /readyz?verbose", Level.STUCK)


def blocked_log(log: EventLog) -> Iterator[Wait]:
    """Yields a wait if reading is blocked by another program's open transaction, or if the write-ahead file cannot be
    shortened. Appends continue in both cases.
    """
    if isinstance(log, SharedLog) and (unread := log.held_back) is not None:
        count = f"{unread.end - unread.first} offsets of {unread.partition}, from {unread.first} on"
        problem = f"cannot read {count}: another program's transaction is open there"
        ends = "it commits or aborts, or its transaction.timeout.ms is over"
        yield Wait("log", "transaction_open", problem, "another program", ends, Level.WAITS)
    if isinstance(log, HasWal) and (blocked := log.blocked) is not None:
        size_mib = blocked.size_bytes >> 20
        problem = f"cannot shorten its write-ahead file ({size_mib} MiB): {blocked.who} holds a transaction open"
        ends = "end that process or its transaction; appends continue meanwhile"
        yield Wait("log", "wal_blocked", problem, blocked.who, ends, Level.WORKS)


async def why_offline(log: EventLog, name_or_id: str, *, clock: Clock) -> Why:
    """Answers for an experiment (name, name@N or id) by reading the log. Raises NotFoundError, UsageError."""
    entry = await find_entry(log, name_or_id)
    if entry.spine.ended:
        return answer(entry, [ended(entry.spine)], live=False, clock=clock)
    state = RunState(entry.id)
    positions = start_of(partitions_of(entry.id))
    follower = Follower(log, state, experiment=entry.id, positions=positions, clock=clock)
    try:
        await follower.catch_up()
    finally:
        await follower.close()
    watch = WaitWatch(log, state, Liveness(), tuple, roles=ROLES, clock=clock)
    missing_daemon = "a daemon: none answers, so nothing runs; the other lines come from the log"
    daemon = Wait(
        "daemon", "not_running", missing_daemon, "you", "start one: rftd serve, with the same --data", Level.STUCK
    )
    # Heartbeats are not folded, so from the log alone every worker would look silent.
    snapshot = replace_snapshot(watch.snapshot(Phase.LEADING), offline=True)
    waits = [wait for wait in waits_of(snapshot) if wait.role not in ("log", *ROLES)]
    return answer(entry, worst_first([daemon, *waits]), live=False, clock=clock)
