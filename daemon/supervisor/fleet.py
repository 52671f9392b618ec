"""The worker processes of one experiment: start, adopt, restart with back-off, drain."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import msgspec

from rftd.daemon.why.scene import Process
from rftd.ops import faults, limits
from rftd.ops.clock import Clock
from rftd.ops.errors import DiskFullError, UnreachableError, WorkError
from rftd.ops.logs import Logger
from rftd.ops.processors import most
from rftd.streams.events.worker import WorkerLost, WorkerStarted
from rftd.streams.folds.run_state import RunState
from rftd.streams.halves import HALF_OF, ROLES
from rftd.streams.spec import ExperimentSpec
from rftd.workers.dispatcher.liveness import Liveness
from rftd.workers.executors.executor import Executor, Handle, WorkerOrder


class Berth(msgspec.Struct, kw_only=True):
    """One wanted worker and the process that fills its place."""

    order: WorkerOrder
    handle: Handle | None = None
    restarts: int = 0
    """In a row, without progress between them."""
    start_at_s: float = 0.0
    progress: int = -1
    """The experiment's progress when the process before ended, or when the first was started."""
    seen_s: float = 0.0
    """When the process was started, or last seen as a member of the experiment."""
    joined: bool = False
    last_pid: int = -1
    """Of the process that ended last, and why it did."""
    last_why: str = ""


class Fleet:
    """Keeps the processes of one experiment as its specification wants them."""

    def __init__(
        self,
        state: RunState,
        spec: ExperimentSpec,
        executor: Executor,
        liveness: Liveness,
        *,
        clock: Clock,
        log: Logger,
        roles: frozenset[str] = ROLES,
        spine_offset: int = 0,
        start_timeout_s: float = limits.WORKER_START_TIMEOUT_S,
    ) -> None:
        """`roles` are those whose processes are started here."""
        self._state = state
        self._executor = executor
        self._liveness = liveness
        self._clock = clock
        self._log = log
        self._host = platform.node()
        self._start_timeout_s = start_timeout_s
        self._draining = False
        self._berths = [
            Berth(order=order) for order in _orders(state.experiment, spec, spine_offset) if order.role in roles
        ]

    def processes(self) -> list[Process]:
        """What becomes of each wanted worker, for those who ask why."""
        now_s = self._clock.monotonic_s()
        return [
            Process(
                role=berth.order.role,
                slot=berth.order.slot,
                pid=None if berth.handle is None else berth.handle.pid,
                joined=berth.joined,
                start_in_s=max(0.0, berth.start_at_s - now_s),
                running_s=now_s - berth.seen_s,
                restarts=berth.restarts,
                last_why=berth.last_why,
            )
            for berth in self._berths
            if self._wanted(berth)
        ]

    def _wanted(self, berth: Berth) -> bool:
        """False while nobody has submitted the half that it belongs to."""
        return HALF_OF[berth.order.role] in self._state.spine.halves

    def adopt(self) -> None:
        """Takes over the workers that the log shows as live, where their process still runs (rule 13)."""
        for started in self._state.roster.live.values():
            for berth in self._berths:
                if berth.handle is None and _fits(started, berth.order):
                    berth.handle = self._executor.adopt(started)
                    berth.progress = self._progress()
                    berth.seen_s = self._clock.monotonic_s()
                    if berth.handle is not None:
                        self._log.info("worker.adopted", role=started.role, slot=started.slot, pid=started.pid)

    async def tend(self, *, start: bool = True) -> list[WorkerLost]:
        """Starts what is missing and due, unless not to `start` any, and names the workers that were lost since.

        Raises WorkError once a worker was restarted `limits.RESTARTS_IN_A_ROW` times without any progress.
        """
        now_s = self._clock.monotonic_s()
        for berth in self._berths:
            if berth.handle is not None and (code := berth.handle.exit_code()) is not None:
                self._ended(berth, code, now_s)
            due = berth.handle is None and now_s >= berth.start_at_s and self._wanted(berth)
            if due and start and not self._draining:
                if berth.progress < 0:
                    berth.progress = self._progress()
                berth.handle = await self._executor.start(berth.order)
                faults.point("fleet.after_start")
                berth.seen_s, berth.joined = now_s, False
                self._log.info("worker.process", role=berth.order.role, slot=berth.order.slot, pid=berth.handle.pid)
        self._kill_silent(now_s)
        self._kill_stuck(now_s)
        return list(self._lost(now_s))

    async def drain(self, timeout_s: float = limits.DRAIN_TIMEOUT_S + 2.0) -> None:
        """Asks every process to leave, and ends those that have not after `timeout_s`. No more are started."""
        self._draining = True
        for berth in self._berths:
            if berth.handle is not None:
                berth.handle.terminate()
        deadline_s = self._clock.monotonic_s() + timeout_s
        while any(berth.handle is not None and berth.handle.exit_code() is None for berth in self._berths):
            if self._clock.monotonic_s() > deadline_s:
                self.kill()
            await self._clock.sleep(0.05)

    def kill(self) -> None:
        """Ends every process at once."""
        for berth in self._berths:
            if berth.handle is not None:
                berth.handle.kill()

    def _progress(self) -> int:
        # A task that workers die of is over at some time, too.
        books = self._state.ledger.books
        return self._state.spine.furthest + books.produced + books.failed_rollouts + len(self._state.spine.evaluated)

    def _ended(self, berth: Berth, code: int, now_s: float) -> None:
        assert berth.handle is not None
        if berth.last_pid != berth.handle.pid:
            berth.last_pid, berth.last_why = berth.handle.pid, self._why(berth.order, code)
        progress = self._progress()
        berth.restarts = 0 if progress > berth.progress else berth.restarts + 1
        berth.progress = progress
        # One waits for space, the other for the log, however long that takes.
        if berth.last_why.startswith(DiskFullError.code) or code == UnreachableError.exit_status:
            berth.restarts = min(berth.restarts, limits.RESTARTS_IN_A_ROW)
        if berth.restarts > limits.RESTARTS_IN_A_ROW:
            raise WorkError(
                f"the {berth.order.role} in slot {berth.order.slot} ended {berth.restarts} times in a row without "
                f"progress; the last time: {berth.last_why}",
                where=str(berth.order.log_path),
                fix="see the end of its log",
            )
        delay_s = limits.RESTART_BACKOFF_S[min(berth.restarts, len(limits.RESTART_BACKOFF_S) - 1)]
        self._log.warning("worker.ended", role=berth.order.role, slot=berth.order.slot, code=code, restart_in_s=delay_s)
        berth.handle = None
        berth.start_at_s = now_s + delay_s

    def _why(self, order: WorkerOrder, code: int) -> str:
        """What the worker said when it stopped, else what the operating system says."""
        if code < -1:
            return f"its process was killed by signal {-code}"
        for gone in reversed(self._state.roster.gone.values()):
            if (gone.role, gone.slot) == (order.role, order.slot):
                if code > 0 and gone.code:
                    return f"{gone.code}: {gone.reason}"
                break
        return "its process ended" if code == -1 else f"its process ended with exit status {code}"

    def _kill_silent(self, now_s: float) -> None:
        """A process that lives but sends no heartbeat hangs; it is ended, and started anew like any other."""
        for started in self._state.roster.live.values():
            for berth in self._berths:
                if (
                    berth.handle is not None
                    and berth.handle.pid == started.pid
                    and self._here(started)
                    and self._liveness.silent(started.worker, now_s)
                ):
                    self._log.warning("worker.silent", role=started.role, slot=started.slot, pid=started.pid)
                    berth.last_pid = started.pid
                    berth.last_why = (
                        f"no heartbeat for {self._liveness.lost_after_s:g} s, so it was killed; "
                        "a workflow that never yields blocks it"
                    )
                    berth.handle.kill()

    def _kill_stuck(self, now_s: float) -> None:
        """A process that does not join, or that left and does not end, hangs; it is ended and started anew."""
        members = {(each.pid, each.role, each.slot) for each in self._state.roster.live.values() if self._here(each)}
        for berth in self._berths:
            if berth.handle is None:
                continue
            if (berth.handle.pid, berth.order.role, berth.order.slot) in members:
                berth.seen_s, berth.joined = now_s, True
                continue
            bound_s = limits.DRAIN_TIMEOUT_S if berth.joined else self._start_timeout_s
            if now_s - berth.seen_s > bound_s:
                stuck = "left and did not end" if berth.joined else "did not join"
                self._log.warning("worker.stuck", role=berth.order.role, slot=berth.order.slot, pid=berth.handle.pid)
                berth.last_pid = berth.handle.pid
                berth.last_why = f"its process {stuck} within {bound_s:g} s, so it was killed"
                berth.seen_s = now_s
                berth.handle.kill()

    def _here(self, started: WorkerStarted) -> bool:
        return started.host == self._host

    def _lost(self, now_s: float) -> Iterator[WorkerLost]:
        """Workers whose process is gone; of another machine's, those that are silent."""
        held = {berth.handle.pid for berth in self._berths if berth.handle is not None}
        for started in self._state.roster.live.values():
            if started.host == self._host and started.pid in held:
                continue
            silent = self._liveness.silent(started.worker, now_s)
            if silent or (started.host == self._host and self._executor.adopt(started) is None):
                known = (each.last_why for each in self._berths if each.last_pid == started.pid)
                usual = f"no heartbeat for {self._liveness.lost_after_s:g} s" if silent else "its process ended"
                reason = next(known, "") or usual
                yield WorkerLost(worker=started.worker, role=started.role, slot=started.slot, reason=reason)


def _orders(experiment: UUID, spec: ExperimentSpec, spine_offset: int) -> Iterator[WorkerOrder]:
    """One trainer, and explorers if any stage explores or evaluates."""
    logs = Path(spec.job_dir) / "log"
    yield WorkerOrder(
        experiment=experiment,
        role="trainer",
        slot=-1,
        threads=most(stage.trainer.threads for stage in spec.stages),
        log_path=logs / "trainer.log",
        spine_offset=spine_offset,
    )
    exploring = [stage for stage in spec.stages if stage.kind != "train"]
    for slot in range(max((stage.rollout.explorers for stage in exploring), default=0)):
        yield WorkerOrder(
            experiment=experiment,
            role="explorer",
            slot=slot,
            threads=most(stage.rollout.threads for stage in exploring),
            log_path=logs / f"explorer_{slot}.log",
            spine_offset=spine_offset,
        )


def _fits(started: WorkerStarted, order: WorkerOrder) -> bool:
    return started.role == order.role and started.slot == order.slot
