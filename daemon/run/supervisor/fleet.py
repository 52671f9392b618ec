"""The worker processes of one experiment: start, adopt, restart with back-off, drain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rftd.daemon.run.supervisor.berth import Berth
from rftd.daemon.run.supervisor.worker_orders import worker_orders
from rftd.daemon.run.why.run_snapshot import Process
from rftd.daemon.run.why.workers import doing_of
from rftd.ops import faults, limits
from rftd.ops.clock import Clock
from rftd.ops.errors import DataError, DiskFullError, LogLossError, UnreachableError
from rftd.ops.ids import Ids
from rftd.ops.logs import Logger
from rftd.streams.events.worker import WorkerLost, WorkerStarted
from rftd.streams.folds.roster import Gone
from rftd.streams.folds.run_state import RunState
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.spec.split_submission import HALF_BY_ROLE, ROLES
from rftd.workers.control.hold import REFUSALS, WORKER_FAILS, Obstacle, Trouble, trouble_of_refusal
from rftd.workers.control.liveness import Liveness
from rftd.workers.hosts.executor import (
    UNFIT_PLACE,
    UNKNOWN_EXIT,
    Executor,
    Handle,
    OpeningExecutor,
    RemoteExecutor,
    WorkerOrder,
)
from rftd.workers.hosts.membership import this_process


class Fleet:
    """The worker processes of one experiment: started, restarted and ended to match the specification."""

    def __init__(
        self,
        state: RunState,
        executor: Executor,
        liveness: Liveness,
        *,
        clock: Clock,
        ids: Ids,
        log: Logger,
        roles: frozenset[str] = ROLES,
        spine_offset: int = 0,
        start_timeout_s: float = limits.WORKER_START_TIMEOUT_S,
    ) -> None:
        """`roles` are the roles with processes started by this daemon. No process is started before `take_up`."""
        self.trouble: Trouble | None = None
        """Obstacle found by the fleet, a reason to pause the experiment; cleared by the controller. None
        without one.
        """
        self.met_loss = False
        """True after a worker left because the log lacks records it had read; cleared by the loss check."""
        self._state = state
        self._executor = executor
        self._liveness = liveness
        self._clock = clock
        self._here = this_process()
        """Identity of this process, to tell workers of this machine."""
        self._log = log
        self._ids = ids
        self._start_timeout_s = start_timeout_s
        self._draining = False
        """True once no process may be started any more."""
        self._roles = roles
        self._spine_offset = spine_offset
        self._spec: ExperimentSpec | None = None
        """The specification behind the present berths."""
        self._berths: list[Berth] = []
        """Berths of the fleet, one for each wanted worker."""

    def take_up(self, spec: ExperimentSpec) -> None:
        """Creates one berth per worker of `spec`, and adopts running workers recorded in the log as live."""
        if not self._berths:
            self._spec = spec
            self._berths = list(self._berths_of(spec))
        for started in self._state.roster.live.values():
            for berth in self._berths:
                if berth.handle is None and _fits(started, berth.order):
                    # Adopted, not started anew: a killed daemon leaves its workers at work, and their memory (half-done
                    # rollouts, optimizer state) is worth more than a clean start.
                    order = msgspec.structs.replace(berth.order, worker=started.worker)
                    self._adopt(berth, order, self._executor.adopt(order, started))

    def seek_opening(self) -> None:
        """Starts searching for worker processes of an earlier daemon not yet recorded in the log; `tend` adopts them,
        and starts no new ones before the search has ended.
        """
        executor = self._executor
        free = [berth for berth in self._berths if berth.handle is None and self._is_wanted(berth)]
        if free and isinstance(executor, OpeningExecutor):
            for berth, search in zip(free, executor.opening([berth.order for berth in free]), strict=True):
                berth.search = search

    def _take_over_found(self) -> None:
        """Adopts the workers found by finished searches; a process whose worker already left or was declared lost is
        not adopted.
        """
        for berth in self._berths:
            if (search := berth.search) is None or not search.over:
                continue
            berth.search = None
            worker = search.worker(berth.order)
            # A worker already left or declared lost hangs: it is ended before the next one starts.
            if worker is not None and worker not in self._state.roster.gone:
                order = msgspec.structs.replace(berth.order, worker=worker)
                self._adopt(berth, order, search.adopt(order))

    def _adopt(self, berth: Berth, order: WorkerOrder, handle: Handle | None) -> None:
        """Puts an earlier daemon's worker into a berth, and starts its time limits now; None as `handle`: the process
        is gone.
        """
        berth.handle = handle
        berth.progress = self._progress()
        berth.seen_s = self._clock.monotonic_s()
        if handle is not None:
            berth.order = order
            berth.begun = True
            self._log.info("worker.adopted", role=order.role, slot=order.slot, pid=handle.pid)

    def _berths_of(self, spec: ExperimentSpec) -> Iterator[Berth]:
        """Yields a fresh berth for each worker of `spec` in the roles started here."""
        orders = worker_orders(self._state.experiment, spec, self._spine_offset)
        return (Berth(order=order) for order in orders if order.role in self._roles)

    def _follow_halves(self) -> None:
        """Adds berths for the workers of a half submitted later; berths with a process stay as they are."""
        spec = self._state.spine.spec
        if spec is None or self._spec is None or spec is self._spec:
            return
        if spec != self._spec:
            occupied = [berth for berth in self._berths if berth.handle or berth.search or berth.restarts]
            occupied_slots = {(berth.order.role, berth.order.slot) for berth in occupied}
            new = (
                berth for berth in self._berths_of(spec) if (berth.order.role, berth.order.slot) not in occupied_slots
            )
            self._berths = [*occupied, *new]
        self._spec = spec

    def processes(self) -> list[Process]:
        """Returns each wanted worker with the state of its process, for `rftd why`."""
        now_s = self._clock.monotonic_s()
        return [
            Process(
                role=berth.order.role,
                slot=berth.order.slot,
                pid=None if berth.handle is None else berth.handle.pid,
                joined=berth.joined,
                start_in_s=max(0.0, berth.start_at_s - now_s),
                restarts=berth.restarts,
                last_why=berth.last_why,
                waits=None if (pending := berth.handle or berth.search) is None else pending.waits,
                start_timeout_s=berth.order.start_timeout_s or self._start_timeout_s,
                worker=berth.order.worker,
            )
            for berth in self._berths
            if self._is_wanted(berth)
        ]

    def _is_wanted(self, berth: Berth) -> bool:
        """False for workers of a half (explorer or trainer file) not yet submitted."""
        return HALF_BY_ROLE[berth.order.role] in self._state.spine.halves

    @property
    def seeks(self) -> bool:
        """True while the search of `seek_opening` runs: processes not yet found could not be ended now."""
        return any(berth.search is not None for berth in self._berths)

    @property
    def ended(self) -> bool:
        """True if a process has ended and `tend` has not handled its end yet."""
        return any(berth.handle is not None and berth.handle.exit_code() is not None for berth in self._berths)

    def tend(self, *, start: bool = True) -> list[WorkerLost]:
        """Adopts workers found by searches, kills hanging ones, starts due ones (only if `start`), and returns the
        newly lost ones, for the log. Never waits.

        The last records of an ended worker must have been folded before the call.
        """
        now_s = self._clock.monotonic_s()
        # Before any verdict: a worker with a joining or heartbeat folded in this turn is not silent.
        self._liveness.tick(now_s)
        self._follow_halves()
        if not self._draining:
            self._take_over_found()
        for berth in self._berths:
            # `exit_code` polls and never waits: this runs on the daemon's loop between two turns of the run.
            if berth.handle is not None and (code := berth.handle.exit_code()) is not None:
                self._process_ended(berth, code, now_s)
            free = berth.handle is None and berth.search is None
            due = free and now_s >= berth.start_at_s and self._is_wanted(berth)
            if due and start and self.trouble is None and not self._draining:
                if berth.progress < 0:
                    berth.progress = self._progress()
                berth.order = msgspec.structs.replace(berth.order, worker=self._ids.new())
                berth.handle = self._executor.start(berth.order)
                berth.seen_s = now_s
                berth.begun = False
                berth.joined = False
            self._look_at_start(berth, now_s)
        self._kill_silent(now_s)
        self._kill_stuck(now_s)
        return list(self._lost(now_s))

    def _look_at_start(self, berth: Berth, now_s: float) -> None:
        """Notes the start of a berth's process by the operating system, and begins the worker's time limit there:
        queueing before is no delay of the worker.
        """
        if berth.handle is None or berth.begun:
            return
        if berth.handle.pid is not None:
            faults.point("fleet.after_start")
            berth.begun = True
            self._log.info("worker.process", role=berth.order.role, slot=berth.order.slot, pid=berth.handle.pid)
        # The start-up time-out counts from the existence of the process; until then it waits for its predecessor's
        # leftovers, or for room, through no fault of its own.
        if berth.handle.pid is not None or berth.handle.waits is not None:
            berth.seen_s = now_s

    def stalled(self) -> Obstacle | None:
        """Returns the obstacle of a worker restarted too often without progress of the experiment; None without such a
        worker.
        """
        now_s = self._clock.monotonic_s()
        for berth in self._berths:
            over = berth.restarts > limits.RESTARTS_IN_A_ROW and self._is_wanted(berth)
            if over and berth.handle is None and now_s < berth.start_at_s:
                who = f"the {berth.order.role}" + (f" in slot {berth.order.slot}" if berth.order.slot >= 0 else "")
                return Obstacle(
                    cause=WORKER_FAILS,
                    reason=f"{who} ended {berth.restarts} times in a row without progress; "
                    f"the last time: {berth.last_why}",
                    fix=f"see the end of {berth.order.log_path}; it is retried automatically, finally once a minute",
                )
        return None

    async def drain(self, timeout_s: float = limits.DRAIN_TIMEOUT_S + 2.0) -> None:
        """Asks every process to leave, and kills those still running after `timeout_s` seconds; starts no more
        processes.

        Child processes left behind are ended too. A process that survives even the kill is logged and abandoned.
        """
        self._draining = True
        for berth in self._berths:
            if berth.handle is not None:
                # All are asked before any is waited for: the drain takes as long as the slowest process, not as long as
                # the sum.
                berth.handle.terminate()
        running = [berth.handle for berth in self._berths if berth.handle is not None]
        if not await self._ended_within(running, timeout_s):
            self.kill()
            await self._ended_within(running, limits.KILL_TIMEOUT_S)
        # Only now: a living worker ends its own children itself.
        cleared = [handle for berth in self._berths if (handle := self._executor.clear(berth.order)) is not None]
        await self._ended_within(cleared, limits.LEFTOVER_GRACE_S + limits.KILL_TIMEOUT_S)
        for handle in (*running, *cleared):
            if handle.exit_code() is None:
                waits_for = handle.waits.waiting_for if handle.waits is not None else ""
                self._log.error("worker.left_behind", pid=handle.pid, waits_for=waits_for)

    async def _ended_within(self, handles: Sequence[Handle], timeout_s: float) -> bool:
        """True once all have ended; False if some still run after `timeout_s`."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        while any(handle.exit_code() is None for handle in handles):
            if self._clock.monotonic_s() > deadline_s:
                return False
            await self._clock.sleep(0.05)
        return True

    def kill(self) -> None:
        """Sends a kill signal to every process of the fleet, without waiting for their ends."""
        for berth in self._berths:
            if berth.handle is not None:
                berth.handle.kill()

    def _progress(self) -> int:
        # Failed rollouts count: a task fatal to its workers is over at some time, too.
        """Returns a number that grows with each step, rollout and evaluation of the experiment."""
        books = self._state.replay_buffer.books
        return self._state.spine.furthest + books.produced + books.failed_rollouts + len(self._state.spine.evaluated)

    def _process_ended(self, berth: Berth, code: int, now_s: float) -> None:
        """Records the end of a berth's process with exit status `code`, and schedules the restart with back-off."""
        assert berth.handle is not None
        # A process killed here has its reason already; the operating system would only say signal 9.
        if berth.last != berth.order.worker:
            berth.last = berth.order.worker
            berth.last_why = self._why(berth, code)
        progress = self._progress()
        berth.restarts = 0 if progress > berth.progress else berth.restarts + 1
        berth.progress = progress
        # Neither a full disk nor a log that is away is the worker's failure: counted only up to the bound, such ends
        # never pause the experiment as repeated failures do.
        if berth.last_why.startswith(DiskFullError.code) or code == UnreachableError.exit_status:
            berth.restarts = min(berth.restarts, limits.RESTARTS_IN_A_ROW)
        delay_s = _delay_s(berth.restarts)
        announcement = self._state.roster.gone.get(berth.order.worker)
        if code == UNFIT_PLACE and announcement is None:
            # At its placement the worker could not even join: files or a release are missing there, to be repaired by a
            # person.
            announcement = Gone(
                role=berth.order.role, slot=berth.order.slot, code=DataError.code, reason=berth.last_why
            )
        berth.refused = (
            announcement if code != 0 and announcement is not None and announcement.code in REFUSALS else None
        )
        self.met_loss = self.met_loss or berth.last_why.startswith(LogLossError.code)
        if berth.refused is not None:
            berth.restarts = 0
            delay_s = self._refused_delay_s(berth.refused)
        self._log.warning("worker.ended", role=berth.order.role, slot=berth.order.slot, code=code, restart_in_s=delay_s)
        berth.handle = None
        berth.start_at_s = now_s + delay_s

    def _refused_delay_s(self, refused: Gone) -> float:
        """Returns the restart delay in seconds of a refusing worker; if all of its role refuse, sets the experiment's
        trouble.

        Only workers started here count: the failures of a foreign worker concern only itself.
        """
        role_berths = [berth for berth in self._berths if berth.order.role == refused.role and self._is_wanted(berth)]
        if any(berth.refused is None for berth in role_berths):
            return limits.CONDEMNED_S
        # On a cluster the environment of a worker is its own: another node may suit it, or the missing part may be
        # installed.
        executor = self._executor
        remote = isinstance(executor, RemoteExecutor) and executor.is_remote(refused.role)
        is_local = not remote and (not refused.host or refused.host == self._here.host)
        self.trouble = self.trouble or trouble_of_refusal(refused, ours=is_local)
        for berth in role_berths:  # each is retried once the experiment continues
            berth.refused = None
            berth.start_at_s = 0.0
        return 0.0

    def _why(self, berth: Berth, code: int) -> str:
        """Returns the reason for the end of a berth's worker: the worker's announcement, else the launcher's, else the
        exit status in words.
        """
        assert berth.handle is not None
        announcement = self._state.roster.gone.get(berth.order.worker)
        if announcement is not None and announcement.code:
            return f"{announcement.code}: {announcement.reason}"
        if berth.handle.reason:
            return berth.handle.reason
        if berth.handle.pid is None:  # given up before its start
            return berth.last_why
        if code == UNKNOWN_EXIT:
            return "its process ended"
        return f"its process was killed by signal {-code}" if code < 0 else f"its process ended with exit status {code}"

    def _kill_silent(self, now_s: float) -> None:
        """Kills processes that live but send no heartbeat: they hang, and are restarted like any other."""
        for berth in self._berths:
            started = self._state.roster.live.get(berth.order.worker)
            if berth.handle is None or started is None or not self._liveness.silent(started.worker, now_s):
                continue
            self._log.warning("worker.silent", role=started.role, slot=started.slot, pid=started.pid)
            berth.last = started.worker
            silent = f"no heartbeat for {self._liveness.lost_after_s:g} s, so it was killed"
            berth.last_why = f"{silent}; {self._activity_of(started)}"
            berth.handle.kill()

    def _activity_of(self, started: WorkerStarted) -> str:
        """Returns a silent worker's last known activity, and possible reasons for the missing heartbeats."""
        evaluations = self._state.evals.open.values()
        evaluates = any(
            leased.worker == started.worker for evaluation in evaluations for leased in evaluation.leases.values()
        )
        if evaluates or self._state.groups.load.get(started.worker):
            return "it had tasks: a workflow or a reward that blocks its process and never yields keeps them back"
        beat = self._liveness.latest.get(started.worker)
        last_state = (
            "it sent none after it joined" if beat is None else f"its last one said that it {doing_of(beat.state)}"
        )
        return f"{last_state}; see the end of its log, and whether its machine is overloaded"

    def _kill_stuck(self, now_s: float) -> None:
        """Kills processes that do not join, or left and do not end: they hang, and are restarted."""
        for berth in self._berths:
            if berth.handle is None:
                continue
            if berth.order.worker in self._state.roster.live:
                berth.seen_s = now_s
                berth.joined = True
                berth.refused = None
                continue
            patience_s = berth.order.start_timeout_s or self._start_timeout_s
            bound_s = limits.DRAIN_TIMEOUT_S if berth.joined else patience_s
            if now_s - berth.seen_s > bound_s:
                stuck = "left and did not end" if berth.joined else "did not join"
                self._log.warning("worker.stuck", role=berth.order.role, slot=berth.order.slot, pid=berth.handle.pid)
                berth.last = berth.order.worker
                berth.last_why = f"its process {stuck} within {bound_s:g} s, so it was killed"
                beat = self._liveness.latest.get(berth.order.worker)
                if beat is not None and not berth.joined:
                    berth.last_why += f"; its last heartbeat said that it {doing_of(beat.state)}"
                berth.seen_s = now_s
                berth.handle.kill()

    def _lost(self, now_s: float) -> Iterator[WorkerLost]:
        """Yields workers recorded as live without a process; of workers on other machines, those without heartbeats."""
        handled_workers = {berth.order.worker for berth in self._berths if berth.handle is not None}
        for started in self._state.roster.live.values():
            # Its exit is noticed by `tend`, and the handle dropped there; until then the worker may be writing its last
            # records, and an announced loss would precede them.
            if started.worker in handled_workers:
                continue
            silent = self._liveness.silent(started.worker, now_s)
            if silent or self._executor.lives(started) is False:
                reasons = (berth.last_why for berth in self._berths if berth.last == started.worker)
                usual = f"no heartbeat for {self._liveness.lost_after_s:g} s" if silent else "its process ended"
                reason = next(reasons, "") or usual
                beat = self._liveness.latest.get(started.worker)
                yield WorkerLost(
                    worker=started.worker,
                    role=started.role,
                    slot=started.slot,
                    reason=reason,
                    memory_bytes=0 if beat is None else beat.memory_bytes,
                )


def _delay_s(restarts: int) -> float:
    """Returns the pause in seconds before the next start, after this many consecutive restarts."""
    if (beyond := restarts - limits.RESTARTS_IN_A_ROW) > 0:
        return limits.STALLED_BACKOFF_S[min(beyond, len(limits.STALLED_BACKOFF_S)) - 1]
    return limits.RESTART_BACKOFF_S[min(restarts, len(limits.RESTART_BACKOFF_S) - 1)]


def _fits(started: WorkerStarted, order: WorkerOrder) -> bool:
    """True if a recorded worker has the role and slot of the order."""
    return started.role == order.role and started.slot == order.slot
