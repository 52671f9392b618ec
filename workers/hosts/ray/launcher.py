"""`RayExecutor`: workers as actors of a Ray cluster, through a separate driver process; never waits for Ray."""

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
"""Command of the driver's process."""
RETRY_PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses before the next driver, after one, two, ... drivers without a cluster."""
LINES: Final = 10_000
"""Maximum requests queued for the driver; a driver with more unread requests counts as hanging, and is killed."""
GPU_QUERY_TIMEOUT_S: Final = 5.0
"""Maximum seconds to wait for the cluster's GPUs at a submission; after it, the submission is accepted unchecked."""


class RayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's address, and the workers' settings."""

    address: str = "auto"
    """The address in the form of `ray.init`; `local`: a cluster of this machine, which ends with the daemon."""
    runtime_env: dict[str, Any] = {}
    """The runtime environment of all workers, in Ray's format."""


class RayExecutor:
    """Runs workers as actors of a Ray cluster; implements `Executor`, `OpeningExecutor` and `RemoteExecutor`. One
    driver process at a time talks to Ray.
    """

    def __init__(
        self,
        log_url: str,
        options: RayOptions,
        *,
        ids: Ids,
        logger: Logger,
        driver_log: Path,
        driver: Sequence[str] = DRIVER,
        environment: WorkerEnvironment | None = None,
        traces: TraceOptions | None = None,
        roles: frozenset[str] = ROLES,
    ) -> None:
        """`driver_log` is the file for the output of Ray and the driver, `driver` the driver's command line.
        `environment` builds the workers' variables from the daemon's.

        Workers export spans according to `traces`. `roles` are the roles placed on Ray: the timeline is written at the
        end of the last of them.
        """
        self._roles = roles
        self._traces = traces
        self._log_url = log_url
        self._options = options
        self._ids = ids
        self._logger = logger
        self._driver_log = driver_log
        self._driver = tuple(driver)
        """Command of the driver's process."""
        self._environment = environment or WorkerEnvironment()
        """Builder of the workers' environment variables from the daemon's."""
        self._lock = threading.Lock()
        """Held while handles or the driver change."""
        self._handles: dict[UUID, RayHandle | RaySweep | RaySearch] = {}
        """Handles by the id in the driver's reports."""
        self._child: subprocess.Popen[bytes] | None = None
        """Process of the present driver; None while there is none."""
        self._lines: queue.Queue[bytes] = queue.Queue(LINES)
        """The requests queued for the driver; an empty one is the last."""
        self._cluster: ClusterSeen | None = None
        """Nodes last reported by the present driver; None before the driver's first report."""
        self._seen = threading.Event()
        """Event set once a report has the memory of every node, or says that the cluster cannot be used."""
        self.away: Words | None = self._away_words(f"Ray at {options.address} to answer", "it does")
        """Why no worker can be placed: the cluster does not answer; None while connected."""
        # At once: connecting takes seconds, and the first experiment is checked against the cluster's GPUs.
        threading.Thread(target=self._keep_driver, name="ray", daemon=True).start()

    def start(self, order: WorkerOrder) -> Handle:
        """Sends an order for the worker to the driver, and returns the worker's handle; see `Executor.start`."""
        return self._handle(order, begin=True)

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        """Returns a handle of an earlier daemon's worker, which later reports the end if Ray has no such actor."""
        return self.adopt_found(order)

    def lives(self, started: WorkerStarted) -> bool | None:
        """True until the worker's handle reports its end; None for a worker without a handle here."""
        handle = self._handles.get(started.worker)
        return handle.exit_code() is None if isinstance(handle, RayHandle) else None

    def host(self) -> Host:
        # Nodes report memory a little later than existence.
        """Returns the cluster as one host, after at most `GPU_QUERY_TIMEOUT_S` seconds for nodes' memory reports."""
        self._seen.wait(GPU_QUERY_TIMEOUT_S)
        cluster = self._cluster
        if cluster is None:
            return msgspec.structs.replace(ANY_HOST, clustered=True)
        return host_of(cluster, self._options.address)

    def clear(self, order: WorkerOrder) -> Handle | None:
        # Once for the experiment, by a role with a single worker.
        """Requests the end of all actors of the order's slot; the last role of the experiment has the timeline written
        too.
        """
        last = order.role == TRAINER or (TRAINER not in self._roles and order.slot == 0)
        timeline = order.cluster.timeline and last
        path = str(order.log_path.parent.parent / "monitor" / "timeline.json") if timeline else ""
        sweep = RaySweep(self, Sweep(number=self._ids.new(), place=_slot_text(order), timeline=path))
        self._request(sweep)
        return sweep

    def opening(self, orders: Sequence[WorkerOrder]) -> list[Search]:
        """Requests a search for each order, and returns the searches; see `OpeningExecutor.opening`."""
        searches = [RaySearch(self, Seek(number=self._ids.new(), place=_slot_text(order))) for order in orders]
        for search in searches:
            self._request(search)
        return list(searches)

    def is_remote(self, role: str) -> bool:
        # Even locally: a node has the raylet's environment, changed by a runtime environment.
        """Returns True, because actors have the environment of their nodes."""
        return True

    def adopt_found(self, order: WorkerOrder) -> Handle:
        """Returns a new handle for an actor that runs already; nothing is started."""
        return self._handle(order, begin=False)

    def _request(self, pending: RaySweep | RaySearch) -> None:
        """Registers a sweep or a search, and sends its request."""
        with self._lock:
            self._handles[pending.request.number] = pending
        self._send(pending.request)

    def end(self, handle: RayHandle) -> None:
        """Sends the request to end a worker to the driver; a pending worker never starts."""
        assert handle.asked is not None
        if not self._send(handle.asked):
            _give_up(handle)

    def _end_requested(self) -> None:
        """Marks workers as ended if their end was requested from a driver now ended itself."""
        for handle in list(self._handles.values()):
            if isinstance(handle, RayHandle) and handle.asked is not None:
                _give_up(handle)

    def _handle(self, order: WorkerOrder, *, begin: bool) -> RayHandle:
        """Registers an order for a worker, and sends it; with `begin` false, for an existing worker."""
        cluster = order.cluster
        actor_order = ActorOrder(
            assignment=Assignment(
                worker=order.worker,
                experiment=order.experiment,
                role=order.role,
                slot=order.slot,
                log_url=self._log_url,
                spine_offset=order.spine_offset,
                traces=self._traces,
            ),
            place=_slot_text(order),
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
        handle = RayHandle(self, actor_order)
        with self._lock:
            self._handles = {id: former for id, former in self._handles.items() if not _is_over(former)}
            self._handles[order.worker] = handle
        if cluster.address not in ("", self._options.address):
            reason = (
                f"the experiment asks for Ray at {cluster.address}, and this daemon places at {self._options.address}; "
                "fix: leave cluster.ray_address out, or submit it to a daemon that serves with that --ray-address"
            )
            handle.seen = msgspec.structs.replace(handle.seen, state="ended", code=UNFIT_PLACE, reason=reason)
            return handle
        self._send(actor_order)
        return handle

    def _send(self, request: Request) -> bool:
        """Queues a request for the driver; False without a driver. The next driver gets all requests anew."""
        with self._lock:
            if self._child is None:
                return False
            try:
                self._lines.put_nowait(line(request))
            except queue.Full:
                self._child.kill()  # it has not read for long; the next driver will
        return True

    def _keep_driver(self) -> None:
        """Starts a driver, listens until its end, and starts the next driver, for the life of the daemon."""
        failures = 0
        pause = threading.Event()
        while True:
            self._cluster = None
            try:
                reason = self._listen(self._start_driver())
            except OSError as error:
                reason = f"the driver cannot be started: {error}"
            failures = 0 if self._cluster is not None else failures + 1
            again_s = RETRY_PAUSES_S[min(failures, len(RETRY_PAUSES_S) - 1)]
            self._end_requested()
            if reason:
                self.away = self._away_words(reason, "see " + str(self._driver_log))
            self._logger.warning("ray.away", reason=self.away.waiting_for if self.away else "", again_in_s=again_s)
            pause.wait(again_s)

    def _start_driver(self) -> subprocess.Popen[bytes]:
        # Not imported: the driver's module imports ray.
        """Starts a driver, and queues the requests for all live handles."""
        options = {
            "address": self._options.address,
            "runtime_env": self._options.runtime_env,
            "local_log": self._log_url.startswith("unix:"),
        }
        self._driver_log.parent.mkdir(parents=True, exist_ok=True)
        with self._driver_log.open("ab") as driver_output:
            child = subprocess.Popen(
                self._driver,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=driver_output,
                start_new_session=True,  # Ctrl-C at the daemon's terminal is not for it: it ends when the daemon does
                env=driver_environment(self._environment),
            )
        with self._lock:
            messages = [msgspec.json.encode(options) + b"\n"]
            messages += [line(request) for handle in self._handles.values() for request in _repeated_requests(handle)]
            self._lines = queue.Queue(LINES)
            self._lines.put_nowait(b"".join(messages))
            self._child = child
        # On a thread: a starting driver reads nothing for seconds, and a pipe is soon full.
        threading.Thread(target=_write_requests, args=(child, self._lines), name="ray-requests", daemon=True).start()
        return child

    def _listen(self, child: subprocess.Popen[bytes]) -> str:
        """Processes the driver's reports until the end of the driver; returns an unreported reason, if any."""
        assert child.stdout is not None
        away_reported = False
        for text in whole_lines(child.stdout):
            match report := json_decoder(cast(Any, Report)).decode(text):
                case ClusterSeen():
                    self._cluster = report
                    self.away = None
                    if all(node.sized for node in report.nodes):
                        self._seen.set()
                case ClusterAway():
                    away_reported = True
                    self.away = self._away_words(report.reason, report.fix)
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
        with suppress(queue.Full):  # with so much queued, the writer meets a broken pipe, and ends
            lines.put_nowait(b"")
        return "" if away_reported else f"Ray at {self._options.address}: its driver ended with exit status {code}"

    def _away_words(self, waiting_for: str, fix: str) -> Words:
        """Returns the wait for a cluster that does not answer."""
        return Words("ray_away", waiting_for, "Ray", f"{fix}; it is tried again by itself", Level.STUCK)


def _write_requests(child: subprocess.Popen[bytes], lines: queue.Queue[bytes]) -> None:
    """Writes requests until the last, or until the driver has ended."""
    assert child.stdin is not None
    with suppress(OSError, ValueError):
        while (text := lines.get()) != b"":
            child.stdin.write(text)
            child.stdin.flush()


def host_of(cluster: ClusterSeen, address: str) -> Host:
    """Returns the cluster at the address as one host with the devices of all nodes, for checks of submissions."""
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
    """Returns the driver's environment: the variables shared by all workers, and `RAY_*`, with usage reports off, and
    the token mode on if a token is set.
    """
    variables = environment.of_machine() | environment.of_family("RAY_*") | {"RAY_USAGE_STATS_ENABLED": "0"}
    if not variables.keys().isdisjoint(TOKENS):
        # At an explicit address Ray sends a token only in token mode; a cluster without tokens ignores the mode.
        variables.setdefault("RAY_AUTH_MODE", "token")
    return variables


def _set_by(runtime_env: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the variables set by Ray for the owner's runtime environment: by name, and for the code included."""
    if not runtime_env:
        return ()
    return ("PYTHONPATH", *map(str, runtime_env.get("env_vars") or {}))


def _slot_text(order: WorkerOrder) -> str:
    """Returns the text of an order's slot, by which actors are named."""
    return f"rftd/{order.experiment}/{order.role}/{order.slot}"


def _is_over(handle: RayHandle | RaySweep | RaySearch) -> bool:
    """True if a handle has ended and has no orphaned actor."""
    return handle.seen.state == "ended" and not (isinstance(handle, RayHandle) and handle.orphaned)


def _give_up(handle: RayHandle) -> None:
    """Marks a pending worker as ended and orphaned: if placed by an earlier driver, the next driver must end the
    worker.
    """
    if handle.seen.state == "pending":
        handle.orphaned = True
        handle.seen = msgspec.structs.replace(handle.seen, state="ended", reason="given up while Ray was away")


def _repeated_requests(handle: RayHandle | RaySweep | RaySearch) -> list[Request]:
    """Returns the requests describing a handle to a new driver."""
    if _is_over(handle):
        return []
    if not isinstance(handle, RayHandle):
        return [handle.request]
    ended = handle.exit_code() is not None
    begin = handle.order.begin and handle.seen.state == "pending" and not ended
    order: Request = msgspec.structs.replace(handle.order, begin=begin)
    return [order] if handle.asked is None else [order, handle.asked]
