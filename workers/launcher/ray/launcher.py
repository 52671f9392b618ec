"""`RayExecutor`: workers as actors of a Ray cluster, by a driver process of its own. Nothing here waits for Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.ops.ids import Ids
from rftd.ops.logs import Logger
from rftd.ops.processors import threads_of
from rftd.ops.releases import release_of
from rftd.ops.tracing.trace_options import HEADERS, TraceOptions
from rftd.ops.words import Level, Words
from rftd.streams.events.worker import WorkerStarted
from rftd.workers.devices.discovery import installed_packages
from rftd.workers.devices.host import ANY_HOST, Device, Host
from rftd.workers.guest import Assignment
from rftd.workers.launcher.executor import UNFIT_PLACE, Handle, WorkerOrder
from rftd.workers.launcher.ray.messages import (
    ActorEnd,
    ActorOrder,
    ActorSeen,
    ClusterAway,
    ClusterSeen,
    Report,
    Request,
    Sweep,
    line,
)

DRIVER: Final = (sys.executable, "-P", "-m", "rftd.workers.launcher.ray.driver")
AGAIN_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses before the next driver, after one, two, ... that met no cluster."""
TOKENS: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Variables of Ray's that hold a cluster's token, or the path of a file with it."""
LOOK_S: Final = 5.0
"""The longest wait for the cluster's GPUs when an experiment is submitted; without an answer its file is believed."""


class RayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's address, and what its workers get."""

    address: str = "auto"
    """The address in the form of `ray.init`; `local`: a cluster of this machine, which ends with the daemon."""
    runtime_env: dict[str, Any] = {}
    """The runtime environment of all workers, as Ray takes it."""


class RayHandle:
    """A worker, as it was last heard of."""

    def __init__(self, launcher: RayExecutor, order: ActorOrder) -> None:
        self._launcher = launcher
        self.order = order
        self.seen = ActorSeen(worker=order.assignment.worker, state="pending")
        self.asked: ActorEnd | None = None
        self.orphaned = False
        """True if it was given up while nobody could be told so: an actor of its may be there."""

    @property
    def pid(self) -> int | None:
        return self.seen.pid

    @property
    def reason(self) -> str:
        return self.seen.reason

    @property
    def waits(self) -> Words | None:
        if self.seen.state != "pending":
            return None
        if (away := self._launcher.away) is not None:
            return away
        return Words("placing", self.seen.waits, "Ray", self.seen.unblock, Level.STUCK) if self.seen.waits else None

    def exit_code(self) -> int | None:
        return self.seen.code if self.seen.state == "ended" else None

    def terminate(self) -> None:
        self._end(at_once=False)

    def kill(self) -> None:
        self._end(at_once=True)

    def _end(self, *, at_once: bool) -> None:
        if self.seen.state == "ended" or (self.asked is not None and self.asked.at_once >= at_once):
            return
        self.asked = ActorEnd(worker=self.order.assignment.worker, at_once=at_once)
        self._launcher.end(self)


class RaySweep:
    """The processes that are left of a place, while they are being ended."""

    pid = None
    reason = ""

    def __init__(self, launcher: RayExecutor, sweep: Sweep) -> None:
        self._launcher = launcher
        self.sweep = sweep
        self.seen = ActorSeen(worker=sweep.number, state="pending", waits="actors of Ray's to end")

    @property
    def waits(self) -> Words | None:
        return self._launcher.away or Words("leftovers", self.seen.waits, "Ray", "Ray has ended them", Level.STUCK)

    def exit_code(self) -> int | None:
        return self.seen.code if self.seen.state == "ended" else None

    def terminate(self) -> None:
        return

    def kill(self) -> None:
        return


class RayExecutor:
    """Implements `Executor`. One driver process at a time, from the beginning on; it ends when the daemon does."""

    def __init__(
        self,
        log_url: str,
        options: RayOptions,
        *,
        ids: Ids,
        logger: Logger,
        says: Path,
        driver: Sequence[str] = DRIVER,
        environ: Mapping[str, str] | None = None,
        traces: TraceOptions | None = None,
    ) -> None:
        """`says` is the file for what Ray and its driver print. Workers send their spans as `traces` says."""
        self._traces = traces
        self._log_url = log_url
        self._options = options
        self._ids = ids
        self._logger = logger
        self._says = says
        self._driver = tuple(driver)
        self._environ = dict(os.environ if environ is None else environ)
        self._lock = threading.Lock()
        self._handles: dict[UUID, RayHandle | RaySweep] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self._cluster: ClusterSeen | None = None
        self._seen = threading.Event()
        self.away: Words | None = self._told(f"Ray at {options.address} to answer", "it does")
        """The obstacle to placing any worker; None while there is a cluster."""
        # At once: connecting takes seconds, and the first experiment is checked against the cluster's GPUs.
        threading.Thread(target=self._keep_driver, name="ray", daemon=True).start()

    def start(self, order: WorkerOrder) -> Handle:
        return self._handle(order, begin=True)

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        return self._handle(order, begin=False)

    def lives(self, started: WorkerStarted) -> bool | None:
        handle = self._handles.get(started.worker)
        if handle is None:
            return None
        return handle.exit_code() is None

    def host(self) -> Host:
        # Nodes say how much memory they have a little later than that they are there.
        self._seen.wait(LOOK_S)
        cluster = self._cluster
        if cluster is None:
            return msgspec.structs.replace(ANY_HOST, clustered=True)
        return host_of(cluster, self._options.address)

    def clear(self, order: WorkerOrder) -> Handle | None:
        timeline = order.cluster.timeline and order.role == "trainer"
        path = str(order.log_path.parent.parent / "monitor" / "timeline.json") if timeline else ""
        sweep = RaySweep(self, Sweep(number=self._ids.new(), place=_place(order), timeline=path))
        with self._lock:
            self._handles[sweep.sweep.number] = sweep
        self._say(sweep.sweep)
        return sweep

    def _names(self, order: WorkerOrder) -> tuple[str, ...]:
        """The daemon's variables that a worker needs."""
        return order.environment if self._traces is None else (*order.environment, *HEADERS)

    def end(self, handle: RayHandle) -> None:
        """Says that a worker is to leave; one that nobody has placed yet never is."""
        assert handle.asked is not None
        if not self._say(handle.asked) and handle.seen.state == "pending":
            # Nobody can place it now; should the driver before have done so, the next one is told to end it.
            handle.orphaned = True
            handle.seen = msgspec.structs.replace(handle.seen, state="ended", reason="given up while Ray was away")

    def _handle(self, order: WorkerOrder, *, begin: bool) -> RayHandle:
        cluster = order.cluster
        wanted = ActorOrder(
            assignment=Assignment(
                worker=order.worker,
                experiment=order.experiment,
                role=order.role,
                slot=order.slot,
                log_url=self._log_url,
                spine_offset=order.spine_offset,
                traces=self._traces,
            ),
            place=_place(order),
            namespace=cluster.namespace,
            begin=begin,
            devices=order.devices,
            nodes=order.nodes,
            threads=threads_of(order.threads),
            log_path=str(order.log_path),
            by_node=cluster.logs_by_node,
            paths=(str(order.log_path.parent.parent), *order.paths),
            release=release_of("rftd"),
            env={name: self._environ[name] for name in self._names(order) if name in self._environ},
        )
        handle = RayHandle(self, wanted)
        with self._lock:
            self._handles = {id: each for id, each in self._handles.items() if not _is_over(each)}
            self._handles[order.worker] = handle
        if cluster.address not in ("", self._options.address):
            reason = (
                f"the experiment asks for Ray at {cluster.address}, and this daemon places at {self._options.address}; "
                "fix: leave cluster.ray_address out, or submit it to a daemon that serves with that --ray-address"
            )
            handle.seen = msgspec.structs.replace(handle.seen, state="ended", code=UNFIT_PLACE, reason=reason)
            return handle
        self._say(wanted)
        return handle

    def _say(self, request: Request) -> bool:
        """Tells the driver; False if there is none. The next one is told all of it anew."""
        with self._lock:
            if self._child is None or self._child.stdin is None:
                return False
            try:
                # A line is shorter than a pipe is deep, and the driver's thread does nothing but read.
                self._child.stdin.write(line(request))
                self._child.stdin.flush()
            except OSError:
                return False
        return True

    def _keep_driver(self) -> None:
        """Starts a driver, listens to it until it ends, and starts the next one; for as long as the daemon lives."""
        failures = 0
        pause = threading.Event()
        while True:
            self._cluster = None
            try:
                said = self._listen(self._begin())
            except OSError as error:
                said = f"the driver cannot be started: {error}"
            failures = 0 if self._cluster is not None else failures + 1
            again_s = AGAIN_S[min(failures, len(AGAIN_S) - 1)]
            if said:
                self.away = self._told(said, "see " + str(self._says))
            self._logger.warning("ray.away", reason=self.away.waiting_for if self.away else "", again_in_s=again_s)
            pause.wait(again_s)

    def _begin(self) -> subprocess.Popen[bytes]:
        # Not imported: the driver's module imports ray.
        options = {
            "address": self._options.address,
            "runtime_env": self._options.runtime_env,
            "local_log": self._log_url.startswith("unix:"),
        }
        self._says.parent.mkdir(parents=True, exist_ok=True)
        with self._says.open("ab") as says:
            child = subprocess.Popen(
                self._driver,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=says,
                start_new_session=True,  # Ctrl-C at the daemon's terminal is not for it: it ends when the daemon does
                env=driver_environment(self._environ),
            )
        assert child.stdin is not None
        with suppress(OSError), self._lock:
            child.stdin.write(msgspec.json.encode(options) + b"\n")
            for each in list(self._handles.values()):
                for request in _again(each):
                    child.stdin.write(line(request))
            child.stdin.flush()
            self._child = child
        return child

    def _listen(self, child: subprocess.Popen[bytes]) -> str:
        """Takes in what the driver says until it ends; the reason if it did not say one."""
        assert child.stdout is not None
        told = False
        for text in child.stdout:
            match report := json_decoder(cast(Any, Report)).decode(text):
                case ClusterSeen():
                    self._cluster = report
                    self.away = None
                    if all(node.sized for node in report.nodes):
                        self._seen.set()
                case ClusterAway():
                    told = True
                    self.away = self._told(report.reason, report.fix)
                    self._seen.set()
                case ActorSeen():
                    handle = self._handles.get(report.worker)
                    if isinstance(handle, RayHandle) and handle.orphaned:
                        handle.orphaned = report.state != "ended"  # its fleet knows it as ended since it was given up
                    elif handle is not None:
                        handle.seen = report
        with self._lock:
            self._child = None
        code = child.wait()
        return "" if told else f"Ray at {self._options.address}: its driver ended with exit status {code}"

    def _told(self, what: str, fix: str) -> Words:
        return Words("ray_away", what, "Ray", f"{fix}; it is tried again by itself", Level.STUCK)


def host_of(cluster: ClusterSeen, address: str) -> Host:
    """The cluster at the address, as a submission is held against it."""
    devices: list[Device] = []
    gpus = 0
    for number, node in enumerate(cluster.nodes):
        name = f"{node.cpus:g} CPUs of {node.address}"
        cpu = Device(kind="cpu", index=number, name=name, memory_bytes=node.memory_bytes, node=node.address)
        devices.append(cpu)
        for number in range(int(node.gpus)):
            name = f"GPU {number} of {node.address}"
            memory_bytes = node.gpu_memory_bytes
            devices.append(Device(kind="cuda", index=gpus, name=name, memory_bytes=memory_bytes, node=node.address))
            gpus += 1
    return Host(
        name=f"Ray at {address}",
        clustered=True,
        devices=tuple(devices),
        no_gpu="" if gpus else "Ray's nodes have none",
        packages=installed_packages(),
    )


def driver_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the driver: of the daemon's, without a usage report, and with a token that is used."""
    found = {**environ, "RAY_USAGE_STATS_ENABLED": "0"}
    if not environ.keys().isdisjoint(TOKENS):
        # At an address that is written out Ray shows a token only in this mode; a cluster without one does not mind.
        found.setdefault("RAY_AUTH_MODE", "token")
    return found


def _place(order: WorkerOrder) -> str:
    return f"rftd/{order.experiment}/{order.role}/{order.slot}"


def _is_over(each: RayHandle | RaySweep) -> bool:
    return each.exit_code() is not None and not (isinstance(each, RayHandle) and each.orphaned)


def _again(each: RayHandle | RaySweep) -> list[Request]:
    """The requests that tell a new driver of it."""
    if isinstance(each, RaySweep):
        return [each.sweep] if each.exit_code() is None else []
    if _is_over(each):
        return []
    ended = each.exit_code() is not None
    begin = each.order.begin and each.seen.state == "pending" and not ended
    order: Request = msgspec.structs.replace(each.order, begin=begin)
    return [order] if each.asked is None else [order, each.asked]
