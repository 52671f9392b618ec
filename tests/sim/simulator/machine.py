"""The processes of a world: daemons and workers, how they end, and what starts them again."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

from rftd.daemon.run.supervisor.folder_claims import FolderClaims
from rftd.daemon.run.supervisor.loss_check import LossCheck
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.daemon.serve.external_worker import ExternalWorker
from rftd.daemon.serve.reconnecting import persistently
from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError
from rftd.ops.ids import SeededIds
from rftd.storage.files.folder_owner import LogIdentity
from rftd.storage.files.survivors import LossesFile
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.spec.split_submission import ROLES
from rftd.workers.devices.host import ANY_HOST, Host
from rftd.workers.hosts.executor import UNKNOWN_EXIT, Handle, WorkerOrder
from rftd.workers.hosts.membership import ProcessName
from rftd.workers.process import run_explorer, run_trainer
from simulator.kinds.several_runs import slots_of
from simulator.loop import SimLoop, SimProcess
from simulator.network import Network
from simulator.scenario import Scenario

HOST = "simulated"
"""What `platform.node()` says in a world."""
REMOTE = "elsewhere"
EPOCH_NS = 1_700_000_000_000_000_000


class SimClock:
    """A process's clock: virtual time, and a wall clock that differs from that of others."""

    def __init__(self, loop: SimLoop, skew_s: float) -> None:
        self._loop, self._skew_s = loop, skew_s

    def now_ns(self) -> int:
        return EPOCH_NS + int((self._loop.time() + self._skew_s) * 1e9)

    def monotonic_s(self) -> float:
        return self._loop.time()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class SimLogger:
    """What a process says, as lines of the world's story."""

    def __init__(self, tell: Callable[[str], None], name: str, errors: list[str]) -> None:
        self._tell, self._name, self._errors = tell, name, errors

    def _say(self, event: str, **fields: Any) -> None:
        shown = " ".join(f"{key}={value}" for key, value in fields.items() if key != "exc_info")
        error = fields.get("exc_info")
        self._tell(f"{self._name} says {event} {shown}")
        if isinstance(error, BaseException) and not asyncio.get_running_loop().is_closed():
            place = traceback.extract_tb(error.__traceback__)[-1]
            self._errors.append(f"{self._name}: {event}: {error!r} in {place.name} line {place.lineno}")
            self._tell("".join(traceback.format_exception(error)))

    debug = info = warning = error = _say


class SimHandle:
    """A worker process, seen by a daemon of its machine."""

    waits = None
    reason = ""

    def __init__(self, process: SimProcess, stop: asyncio.Event, *, adopted: bool) -> None:
        self._process, self._stop, self._adopted = process, stop, adopted

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        if self._process.alive:
            return None
        return UNKNOWN_EXIT if self._adopted else self._process.exit_code

    def terminate(self) -> None:
        if self._process.alive:
            self._stop.set()

    def kill(self) -> None:
        self._process.kill()


class SimExecutor:
    """Implements `Executor`: workers are simulated processes of one machine, and outlive the daemon."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def start(self, order: WorkerOrder) -> Handle:
        process, stop = self._machine.start_worker(
            order.role, order.slot, experiment=order.experiment, worker=order.worker
        )
        return SimHandle(process, stop, adopted=False)

    def host(self) -> Host:
        return ANY_HOST

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        for process, stop in self._machine.workers.items():
            if process.pid == started.pid and process.alive and started.host == HOST:
                return SimHandle(process, stop, adopted=True)
        return None

    def lives(self, started: WorkerStarted) -> bool | None:
        if started.host != HOST:
            return None
        return any(process.pid == started.pid and process.alive for process in self._machine.workers)

    def clear(self, order: WorkerOrder) -> Handle | None:
        return None


class Machine:
    """Starts processes, and keeps one daemon (and external workers) running."""

    def __init__(
        self, loop: SimLoop, network: Network, scenario: Scenario, tell: Callable[[str], None], *, seed: int
    ) -> None:
        self.loop, self.network, self.scenario, self.tell = loop, network, scenario, tell
        self.workers: dict[SimProcess, asyncio.Event] = {}
        self.daemons: dict[SimProcess, Supervisor] = {}
        self.losses: LossesFile | None = None
        """Where daemons that are started from now on keep what they notice to be lost; None: each forgets it."""
        self.identity: LogIdentity | None = None
        """What tells the log from a copy of it; None: the folders of experiments are anybody's."""
        self.down = False
        """True between `take_down` and `bring_up`: nothing runs, and nobody may start anything."""
        self._seed = seed
        self._pids = 100
        network.has_daemon = lambda: any(each.running for each in self.daemons)

    def of(self, role: str) -> list[SimProcess]:
        """Live processes of a role, oldest first, stopped ones among them."""
        each = self.daemons if role == "daemon" else self.workers
        return [process for process in each if process.alive and process.role == role]

    def _new(self, name: str, role: str) -> tuple[SimProcess, Clock, SeededIds]:
        self._pids += 1
        process = self.loop.process(f"{name}#{self._pids}", role, self._pids)
        skew_s = self.network.random.uniform(-1.0, 1.0) * self.scenario.skew_s
        clock = SimClock(self.loop, skew_s)
        return process, clock, SeededIds(clock, self._seed * 100_000 + self._pids)

    def start_daemon(self) -> SimProcess:
        """A daemon with a new identity on the same log."""
        process, clock, ids = self._new("daemon", "daemon")
        logger = SimLogger(self.tell, process.name, self.loop.errors)
        # Made inside of the process, whose name its locks and events are to carry.
        supervisor = process.context.run(
            lambda: Supervisor(
                log := self.network.client(process),
                SimExecutor(self),
                owner=ids.new(),
                clock=clock,
                ids=ids,
                logger=logger,
                roles=frozenset() if self.scenario.external else ROLES,
                loss_check=LossCheck(
                    log, self.losses, logger=logger, claims=FolderClaims(self.identity, logger=logger)
                ),
                slots=slots_of(self.scenario),
            )
        )
        self.daemons[process] = supervisor

        async def serve() -> None:
            await persistently(supervisor.drive, "supervisor", clock=clock, logger=logger)

        self._spawn(process, serve)
        return process

    def start_worker(
        self, role: str, slot: int, *, experiment: UUID | None = None, worker: UUID | None = None
    ) -> tuple[SimProcess, asyncio.Event]:
        """A worker of one experiment, or an external one that joins whatever is under way."""
        process, clock, ids = self._new(f"{role}{'' if slot < 0 else slot}", role)
        logger, log = SimLogger(self.tell, process.name, self.loop.errors), self.network.client(process)
        process.logger = logger
        name = ProcessName(host=REMOTE if experiment is None else HOST, pid=process.pid, start_s=process.start_s)
        stop = asyncio.Event()
        self.workers[process] = stop
        start_s = self.network.random.uniform(0.1, 1.0)

        async def work() -> None:
            await asyncio.sleep(start_s)
            if experiment is None:
                external = ExternalWorker(
                    log, role, slot, clock=clock, ids=ids, logger=logger, process=name, identity=self.identity
                )
                await external.run(stop)
                return
            run = run_trainer if role == "trainer" else partial(run_explorer, slot=slot)
            await run(log, experiment, stop=stop, clock=clock, ids=ids, logger=logger, worker=worker, process=name)

        self._spawn(process, work)
        return process, stop

    def _spawn(self, process: SimProcess, work: Callable[[], Any]) -> None:
        async def main() -> None:
            code = 0
            try:
                await work()
            except RftdError as error:
                self.tell(f"{process.name} ends with {type(error).__name__}: {error.what}")
                code = error.exit_status
            except Exception as error:
                if self.loop.is_closed():
                    return
                self.tell(f"{process.name} crashes with {error!r}")
                self.loop.errors.append(f"{process.name} crashed: {error!r}")
                code = 1
            process.kill(code)

        self.tell(f"{process.name} starts")
        process.spawn(main())

    def take_down(self) -> None:
        """Kills every daemon and every worker; until `bring_up` nobody starts another one."""
        self.down = True
        for process in [*self.daemons, *self.workers]:
            process.kill()

    def bring_up(self) -> None:
        """Lets what keeps a daemon and external workers running go on."""
        self.down = False

    async def keep(self) -> None:
        """What systemd and an operator do, until cancelled: no daemon for a while, and another one is started."""
        missed_s = 0.0
        while True:
            await asyncio.sleep(0.5)
            if self.down:
                continue
            running = any(daemon.running for daemon in self.daemons)
            missed_s = 0.0 if running else missed_s + 0.5
            # The embedded log has a lock: while a daemon lives, stopped or not, no other one can be started.
            locked = self.network.weather.embedded and any(daemon.alive for daemon in self.daemons)
            if not running and not locked and (missed_s >= self.scenario.takeover_s or not self.of("daemon")):
                self.start_daemon()
                missed_s = 0.0
            if self.scenario.external:
                for role, slot in self._missing():
                    self.start_worker(role, slot)

    def _missing(self) -> Iterator[tuple[str, int]]:
        """External workers whose place is empty; one that is stopped is replaced, as a scheduler would."""
        trainers = sum(1 for each in self.of("trainer") if each.running)
        for _ in range(self.scenario.trainers - trainers):
            yield "trainer", -1
        explorers = sum(1 for each in self.of("explorer") if each.running)
        for slot in range(explorers, self.scenario.shape.explorers):
            yield "explorer", slot
