"""`RayExecutor`: workers as actors of a Ray cluster, by a driver process of its own. Nothing here waits for Ray."""

from __future__ import annotations

import queue
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
from rftd.ops.tracing.trace_options import TraceOptions
from rftd.ops.words import Level, Words
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.spec.split_submission import ROLES, TRAINER
from rftd.workers.devices.discovery import installed_packages
from rftd.workers.devices.host import ANY_HOST, Device, Host
from rftd.workers.guest import Assignment
from rftd.workers.hosts.environment import WorkerEnvironment
from rftd.workers.hosts.executor import UNFIT_PLACE, Handle, Search, WorkerOrder
from rftd.workers.hosts.ray.handles import RayHandle, RaySearch, RaySweep
from rftd.workers.hosts.ray.messages import (
    ActorOrder,
    ActorSeen,
    ClusterAway,
    ClusterSeen,
    Report,
    Request,
    Seek,
    Sweep,
    line,
    whole_lines,
)
from rftd.workers.hosts.ray.open_cluster import TOKENS

DRIVER: Final = (sys.executable, "-P", "-m", "rftd.workers.hosts.ray.driver")
AGAIN_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses before the next driver, after one, two, ... that met no cluster."""
LINES: Final = 10_000
"""Requests that wait for a driver to read them; one that leaves more unread hangs."""
LOOK_S: Final = 5.0
"""The longest wait for the cluster's GPUs when an experiment is submitted; without an answer its file is believed."""


class RayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's address, and what its workers get."""

    address: str = "auto"
    """The address in the form of `ray.init`; `local`: a cluster of this machine, which ends with the daemon."""
    runtime_env: dict[str, Any] = {}
    """The runtime environment of all workers, as Ray takes it."""


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
        environment: WorkerEnvironment | None = None,
        traces: TraceOptions | None = None,
        roles: frozenset[str] = ROLES,
    ) -> None:
        """`says` is the file for what Ray and its driver print. `environment` builds what workers have of this
        process's. Workers, of these `roles`, send their spans as `traces` says."""
        self._roles = roles
        self._traces = traces
        self._log_url = log_url
        self._options = options
        self._ids = ids
        self._logger = logger
        self._says = says
        self._driver = tuple(driver)
        self._environment = environment or WorkerEnvironment()
        self._lock = threading.Lock()
        self._handles: dict[UUID, RayHandle | RaySweep | RaySearch] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self._lines: queue.Queue[bytes] = queue.Queue(LINES)
        """The requests that are on their way to the driver; an empty one is the last."""
        self._cluster: ClusterSeen | None = None
        self._seen = threading.Event()
        self.away: Words | None = self._told(f"Ray at {options.address} to answer", "it does")
        """The obstacle to placing any worker; None while there is a cluster."""
        # At once: connecting takes seconds, and the first experiment is checked against the cluster's GPUs.
        threading.Thread(target=self._keep_driver, name="ray", daemon=True).start()

    def start(self, order: WorkerOrder) -> Handle:
        return self._handle(order, begin=True)

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        return self.adopt_found(order)

    def lives(self, started: WorkerStarted) -> bool | None:
        handle = self._handles.get(started.worker)
        return handle.exit_code() is None if isinstance(handle, RayHandle) else None

    def host(self) -> Host:
        # Nodes say how much memory they have a little later than that they are there.
        self._seen.wait(LOOK_S)
        cluster = self._cluster
        if cluster is None:
            return msgspec.structs.replace(ANY_HOST, clustered=True)
        return host_of(cluster, self._options.address)

    def clear(self, order: WorkerOrder) -> Handle | None:
        # Once, by whoever there is one of.
        last = order.role == TRAINER or (TRAINER not in self._roles and order.slot == 0)
        timeline = order.cluster.timeline and last
        path = str(order.log_path.parent.parent / "monitor" / "timeline.json") if timeline else ""
        sweep = RaySweep(self, Sweep(number=self._ids.new(), place=_place(order), timeline=path))
        self._ask(sweep)
        return sweep

    def opening(self, orders: Sequence[WorkerOrder]) -> list[Search]:
        searches = [RaySearch(self, Seek(number=self._ids.new(), place=_place(order))) for order in orders]
        for search in searches:
            self._ask(search)
        return list(searches)

    def is_remote(self, role: str) -> bool:
        # On this machine, too: a node has the environment of its raylet, and a runtime environment changes that.
        return True

    def adopt_found(self, order: WorkerOrder) -> Handle:
        """The worker that a search found."""
        return self._handle(order, begin=False)

    def _ask(self, asked: RaySweep | RaySearch) -> None:
        with self._lock:
            self._handles[asked.request.number] = asked
        self._say(asked.request)

    def end(self, handle: RayHandle) -> None:
        """Says that a worker is to leave; one that nobody has placed yet never is."""
        assert handle.asked is not None
        if not self._say(handle.asked):
            _give_up(handle)

    def _give_up_asked(self) -> None:
        """Ends what a driver was asked to end that has ended itself."""
        for each in list(self._handles.values()):
            if isinstance(each, RayHandle) and each.asked is not None:
                _give_up(each)

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
            log_level=order.log_level,
            paths=(str(order.log_path.parent.parent), *order.paths),
            release=release_of("rftd"),
            env=self._environment.named_by(order),
            defaults=self._environment.passed(),
            keep=(*self._environment.pass_env, *_set_by(self._options.runtime_env)),
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
        """Has the driver told; False if there is none. The next one is told all of it anew."""
        with self._lock:
            if self._child is None:
                return False
            try:
                self._lines.put_nowait(line(request))
            except queue.Full:
                self._child.kill()  # it has not read for long, and the next one will
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
            self._give_up_asked()
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
                env=driver_environment(self._environment),
            )
        with self._lock:
            told = [msgspec.json.encode(options) + b"\n"]
            told += [line(request) for each in self._handles.values() for request in _again(each)]
            self._lines = queue.Queue(LINES)
            self._lines.put_nowait(b"".join(told))
            self._child = child
        # On a thread: a driver that is just starting reads nothing for seconds, and a pipe is soon full.
        threading.Thread(target=_write, args=(child, self._lines), name="ray-requests", daemon=True).start()
        return child

    def _listen(self, child: subprocess.Popen[bytes]) -> str:
        """Takes in what the driver says until it ends; the reason if it did not say one."""
        assert child.stdout is not None
        told = False
        for text in whole_lines(child.stdout):
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
            lines = self._lines
        code = child.wait()
        with suppress(queue.Full):  # whoever has that much to write meets a broken pipe, and ends
            lines.put_nowait(b"")
        return "" if told else f"Ray at {self._options.address}: its driver ended with exit status {code}"

    def _told(self, what: str, fix: str) -> Words:
        return Words("ray_away", what, "Ray", f"{fix}; it is tried again by itself", Level.STUCK)


def _write(child: subprocess.Popen[bytes], lines: queue.Queue[bytes]) -> None:
    """Writes requests until the last, or until the driver has ended."""
    assert child.stdin is not None
    with suppress(OSError, ValueError):
        while (text := lines.get()) != b"":
            child.stdin.write(text)
            child.stdin.flush()


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


def driver_environment(environment: WorkerEnvironment) -> dict[str, str]:
    """The environment of the driver: what workers share and what is Ray's, without a usage report, and with a token
    that is used."""
    found = environment.of_machine() | environment.of_family("RAY_*") | {"RAY_USAGE_STATS_ENABLED": "0"}
    if not found.keys().isdisjoint(TOKENS):
        # At an address that is written out Ray shows a token only in this mode; a cluster without one does not mind.
        found.setdefault("RAY_AUTH_MODE", "token")
    return found


def _set_by(runtime_env: Mapping[str, Any]) -> tuple[str, ...]:
    """The variables that Ray sets as the owner's runtime environment says: by name, and for the code that it brings."""
    if not runtime_env:
        return ()
    return ("PYTHONPATH", *map(str, runtime_env.get("env_vars") or {}))


def _place(order: WorkerOrder) -> str:
    return f"rftd/{order.experiment}/{order.role}/{order.slot}"


def _is_over(each: RayHandle | RaySweep | RaySearch) -> bool:
    return each.seen.state == "ended" and not (isinstance(each, RayHandle) and each.orphaned)


def _give_up(handle: RayHandle) -> None:
    """Nobody can place it now; should a driver before have done so, the next one is told to end it."""
    if handle.seen.state == "pending":
        handle.orphaned = True
        handle.seen = msgspec.structs.replace(handle.seen, state="ended", reason="given up while Ray was away")


def _again(each: RayHandle | RaySweep | RaySearch) -> list[Request]:
    """The requests that tell a new driver of it."""
    if _is_over(each):
        return []
    if not isinstance(each, RayHandle):
        return [each.request]
    ended = each.exit_code() is not None
    begin = each.order.begin and each.seen.state == "pending" and not ended
    order: Request = msgspec.structs.replace(each.order, begin=begin)
    return [order] if each.asked is None else [order, each.asked]
