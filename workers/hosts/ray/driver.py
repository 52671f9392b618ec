"""The driver: a process that places workers on a Ray cluster for a `RayExecutor`, and reports their states.

Requests are read from standard input, reports are written to standard output. The driver ends when its input ends;
detached actors keep running, and the next driver finds them by name.
"""

from __future__ import annotations

import os
import queue
import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast
from uuid import UUID

import msgspec
import ray
from ray.util import placement_group, remove_placement_group
from ray.util.placement_group import get_placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rftd.ops.decoding import json_decoder
from rftd.workers.guest import Outcome
from rftd.workers.hosts.executor import UNFIT_PLACE, UNKNOWN_EXIT
from rftd.workers.hosts.ray.actor import ActorBegun, WorkerActor
from rftd.workers.hosts.ray.arrival import variables_of
from rftd.workers.hosts.ray.cluster import RayCluster
from rftd.workers.hosts.ray.deaths import memory_reason_of
from rftd.workers.hosts.ray.messages import (
    ActorEnd,
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
from rftd.workers.hosts.ray.placement import CPUS, bundles_of, lack_of, strategy_of

NAMESPACE: Final = "rftd"
"""Namespace of the driver's own connection to Ray; each actor has the namespace of its order instead."""
POLL_INTERVAL_S: Final = 0.1
"""Seconds for which the driver waits for a request before it checks the workers again."""
NODES_S: Final = 1.0
"""Minimum number of seconds between two readings of the cluster's nodes."""
CALLS: Final = 8
"""Maximum simultaneous calls to an actor: each daemon that adopted the worker has one call waiting for its end."""
NO_ACTOR_REASON: Final = (
    "no actor of Ray's has its name: it has ended, or a daemon without --workers ray started it; in that case another "
    "takes its place, and it leaves"
)
"""Reason of a worker without an actor."""


RAY_ERRORS: Final = (
    ray.exceptions.LocalRayletDiedError,
    ray.exceptions.RaySystemError,
    ray.exceptions.AuthenticationError,
    ray.exceptions.RpcError,
)
"""Errors about Ray itself, which tell nothing about the called actor: the cluster is away."""


class DriverOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a driver's input; not command line arguments, because a runtime environment may contain
    secrets.
    """

    address: str
    """Address of the cluster."""
    runtime_env: dict[str, Any] = {}
    """Runtime environment of the workers, in Ray's format."""
    local_log: bool
    """True if only processes of the daemon's machine can reach the log."""


class Tracked:
    """A worker followed by the driver from order to end: placement group, actor, pending calls, last state."""

    def __init__(self, order: ActorOrder) -> None:
        """Begins to follow the worker of `order`, in the state `pending`, before its placement."""
        self.order = order
        self.name = order.name
        """Name of the actor."""
        self.group: Any = None
        """Placement group; None before the placement."""
        self.actor: Any = None
        """The worker's actor; None before the actor is found or made."""
        self._begun: Any = None
        """Pending call of the actor's `begin`; None before the call."""
        self._ended: Any = None
        """Pending call of the actor's `outcome`; None before the worker has begun."""
        self.seen = ActorSeen(worker=order.assignment.worker, state="pending")
        """State of the worker at the last check, to be reported if changed."""

    def advance(self, cluster: RayCluster) -> None:
        """Checks the worker without blocking, and takes the next step: place, begin, or await the end. Updates `seen`;
        raises the errors of `RAY_ERRORS`.
        """
        if self.seen.state == "ended":
            return
        try:
            if self.actor is None:
                self._place_worker(cluster)
            elif self._ended is None:
                self._await_begin(cluster)
            else:
                self._await_end()
        except ray.exceptions.ActorUnavailableError:
            self._ask_again()
        except ray.exceptions.RayTaskError as error:
            self._report_end(1, f"its actor failed: {str(error.cause)[:400]}")
        except RAY_ERRORS:
            raise
        except ray.exceptions.RayError as error:
            # The error for an actor's end depends on the cause: the node, the memory monitor, ...
            self._report_end(UNKNOWN_EXIT, cluster.death_of(self.name) or _error_line(error))

    def give_up(self, *, at_once: bool) -> None:
        """Ends the worker: immediately if `at_once`, else after its running rollouts. A pending worker never starts."""
        if self.seen.state == "ended":
            return
        if self.seen.state == "running" and not at_once:
            self.actor.stop.remote()
            return
        self._report_end(
            -9 if self.seen.state == "running" else UNKNOWN_EXIT, "" if self.actor else "given up before it was placed"
        )

    def _place_worker(self, cluster: RayCluster) -> None:
        """Finds the worker's actor, or places a new one: placement group first, then the actor."""
        if self.group is None:
            with suppress(ValueError):
                self.actor = ray.get_actor(self.name, self.order.namespace)
            if self.actor is not None:
                with suppress(ValueError):
                    self.group = get_placement_group(self.name)
                self._begun = self.actor.begin.remote(msgspec.json.encode(self.order))
                return
            if not self.order.begin:
                self._report_end(UNKNOWN_EXIT, cluster.death_of(self.name) or NO_ACTOR_REASON)
                return
            if self._clear_slot(cluster):
                return
            self.group = placement_group(
                bundles_of(self.order.devices, self.order.nodes),
                strategy=strategy_of(self.order.nodes),
                name=self.name,
                lifetime="detached",
            )
        if placement_group_table(self.group)["state"] == "CREATED":
            self._make_actor()
        else:
            lack = lack_of(self.order.devices, self.order.nodes, cluster.nodes)
            self._set_wait(
                lack or "Ray to place it: there is room", "other workers end, or the cluster gets more nodes"
            )

    def _clear_slot(self, cluster: RayCluster) -> bool:
        """Kills the slot's earlier actors, or removes the slot's placement groups if no such actor is left.

        Returns True if the placement has to wait: for those actors to end, or for nodes that reach the log.
        """
        unreached = cluster.unreached()
        if unreached:
            missing = f"a log that other nodes reach: {', '.join(unreached)} cannot open the file that is this daemon's"
            self._set_wait(missing, "serve with --log or --kafka, or on a cluster of this machine alone")
            return True
        before = [actor for actor in cluster.actors_of(self.order.place) if actor["name"] != self.name]
        for actor in before:
            with suppress(ValueError):
                ray.kill(ray.get_actor(actor["name"], actor["namespace"]), no_restart=True)
        if before:
            self._set_wait("the actor before it in its place to end", "Ray has ended it")
        else:
            cluster.remove_groups(self.order.place)
        return bool(before)

    def _make_actor(self) -> None:
        """Makes the actor in its placement group, and calls the actor's `begin`."""
        options: dict[str, Any] = {
            "name": self.name,
            "namespace": self.order.namespace,
            "lifetime": "detached",
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": CALLS,
            "num_cpus": CPUS,
            "num_gpus": self.order.devices_of_a_node,
            "runtime_env": {"env_vars": variables_of(self.order, self.order.place)},
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, 0),
        }
        self.actor = ray.remote(WorkerActor).options(**options).remote()
        self._begun = self.actor.begin.remote(msgspec.json.encode(self.order))
        self._set_wait("Ray to start its process", "Ray starts it or gives a reason; a busy node takes longer")

    def _ask_again(self) -> None:
        """Repeats the pending call: the actor's node is slow to answer."""
        if self._ended is None:
            self._begun = self.actor.begin.remote(msgspec.json.encode(self.order))
        else:
            self._ended = self.actor.outcome.remote()

    def _await_begin(self, cluster: RayCluster) -> None:
        """Checks for the answer to `begin`: running, or refused by the node."""
        ready, _ = ray.wait([self._begun], timeout=0)
        if not ready:
            return
        begun = json_decoder(ActorBegun).decode(ray.get(self._begun))
        if begun.refusal:
            self._report_end(UNFIT_PLACE, begun.refusal)
            return
        self._ended = self.actor.outcome.remote()
        node = cluster.node_of(self.name)
        self.seen = msgspec.structs.replace(self.seen, state="running", pid=begun.pid, node=node, waits="", unblock="")

    def _await_end(self) -> None:
        """Checks for the worker's outcome."""
        ready, _ = ray.wait([self._ended], timeout=0)
        if ready:
            outcome = json_decoder(Outcome).decode(ray.get(self._ended))
            self._report_end(outcome.code, outcome.reason)

    def _set_wait(self, what: str, unblock: str) -> None:
        """Sets what a pending worker waits for."""
        self.seen = msgspec.structs.replace(self.seen, waits=what, unblock=unblock)

    def _report_end(self, code: int, reason: str) -> None:
        """Reports the end, and removes actor and placement group."""
        self.seen = msgspec.structs.replace(self.seen, state="ended", code=code, reason=reason)
        if self.actor is not None:
            with suppress(ray.exceptions.RayError, ValueError):
                ray.kill(self.actor, no_restart=True)
        if self.group is not None:
            with suppress(ray.exceptions.RayError, ValueError):
                remove_placement_group(self.group)


def _error_line(error: Exception) -> str:
    """Returns an error of Ray in one line."""
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return memory_reason_of("", str(error))
    return str(error).splitlines()[0]


class RunningSweep:
    """The carrying out of a `Sweep` request: ends all actors and placement groups of a slot, and writes the cluster's
    timeline if requested.
    """

    def __init__(self, sweep: Sweep) -> None:
        """Begins with the request `sweep` in the state `pending`, before anything is ended."""
        self._sweep = sweep
        self.seen = ActorSeen(worker=sweep.number, state="pending", waits="actors of Ray's to end")
        """State of the sweep at the last check, to be reported if changed."""

    def advance(self, cluster: RayCluster) -> None:
        """Kills the slot's living actors; once there are none, removes its placement groups and reports the end in
        `seen`.
        """
        if self.seen.state == "ended":
            return
        actors = cluster.actors_of(self._sweep.place)
        for actor in actors:
            with suppress(ValueError):
                ray.kill(ray.get_actor(actor["name"], actor["namespace"]), no_restart=True)
        if actors:
            return
        cluster.remove_groups(self._sweep.place)
        if self._sweep.timeline:
            path = Path(self._sweep.timeline)
            path.parent.mkdir(parents=True, exist_ok=True)
            ray.timeline(str(path))
        self.seen = msgspec.structs.replace(self.seen, state="ended", code=0, waits="")


class RunningSeek:
    """The carrying out of a `Seek` request: a search for the workers placed in a slot by an earlier driver."""

    def __init__(self, seek: Seek) -> None:
        """Begins with the request `seek` in the state `pending`, before the search."""
        self._seek = seek
        self.seen = ActorSeen(worker=seek.number, state="pending")
        """State of the search at the last check, to be reported if changed."""

    def advance(self, cluster: RayCluster) -> None:
        """Finds the slot's workers in one query, and reports them with the end of the search in `seen`."""
        self.seen = msgspec.structs.replace(
            self.seen, state="ended", code=0, found=cluster.workers_of(self._seek.place)
        )


class Driver:
    """Carries out requests and reports states until the input ends."""

    def __init__(self, options: DriverOptions, requests: Iterator[bytes], output: int) -> None:
        """`requests` are the lines of the input; reports go to the descriptor `output`."""
        self._options = options
        self._output = output
        self._tracked: dict[UUID, Tracked | RunningSweep | RunningSeek] = {}
        """Workers, sweeps and searches by id."""
        self._reported: dict[UUID, ActorSeen] = {}
        """State last reported of each."""
        self._requests: queue.Queue[Request | None] = queue.Queue()
        """Requests read; None at the end of the input."""
        threading.Thread(target=self._read_requests, args=(requests,), name="requests", daemon=True).start()

    def run(self) -> None:
        """Carries out requests and checks workers every `POLL_INTERVAL_S`, until the input has ended. Raises Ray's
        errors while the cluster is unreachable.
        """
        cluster = RayCluster(local_log=self._options.local_log)
        looked_s = 0.0
        while True:
            if (now_s := time.monotonic()) - looked_s >= NODES_S:
                looked_s = now_s
                cluster.refresh()
                self._write_report(ClusterSeen(nodes=cluster.nodes))
            try:
                if not self._carry_out(self._requests.get(timeout=POLL_INTERVAL_S)):
                    return
                while True:
                    if not self._carry_out(self._requests.get_nowait()):
                        return
            except queue.Empty:
                pass
            for id, tracked in list(self._tracked.items()):
                tracked.advance(cluster)
                if self._reported.get(id) != tracked.seen:
                    self._reported[id] = tracked.seen
                    self._write_report(tracked.seen)
                if tracked.seen.state == "ended":
                    del self._tracked[id], self._reported[id]

    def _carry_out(self, request: Request | None) -> bool:
        """Carries out a request; False at the end of input."""
        match request:
            case ActorOrder():
                self._tracked.setdefault(request.assignment.worker, Tracked(request))
            case ActorEnd():
                if isinstance(tracked := self._tracked.get(request.worker), Tracked):
                    tracked.give_up(at_once=request.at_once)
            case Sweep():
                self._tracked[request.number] = RunningSweep(request)
            case Seek():
                self._tracked[request.number] = RunningSeek(request)
            case None:
                return False
        return True

    def _read_requests(self, requests: Iterator[bytes]) -> None:
        """Reads requests until the input ends; the body of a thread."""
        for text in whole_lines(requests):
            self._requests.put(json_decoder(cast(Any, Request)).decode(text))
        self._requests.put(None)

    def _write_report(self, report: Report) -> None:
        """Writes a report."""
        os.write(self._output, line(report))


def connect(options: DriverOptions) -> None:
    """Connects to the Ray cluster at the options' address; the address `local` starts one. Raises Ray's errors."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    more: dict[str, Any] = {"include_dashboard": False} if options.address == "local" else {}
    ray.init(
        address=options.address,
        namespace=NAMESPACE,
        runtime_env=options.runtime_env or None,
        log_to_driver=False,
        configure_logging=False,
        **more,
    )


def why_away(error: BaseException, address: str) -> ClusterAway:
    """Returns the report of an unusable cluster, with a fix: token refused, another release of Ray, or no answer."""
    error_text = " ".join(str(error).split())[:400]
    # Ray reports a refusal only in the text of the last error before giving up.
    if isinstance(error, ray.exceptions.AuthenticationError) or "AuthenticationError" in str(error.__cause__):
        return ClusterAway(
            reason=f"Ray at {address} refuses this daemon's token, or its lack of one",
            fix="serve with the RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH of the cluster",
        )
    if "Version mismatch" in error_text:
        return ClusterAway(reason=f"Ray at {address} is of another release: {error_text}", fix="install that one")
    return ClusterAway(reason=f"Ray at {address} does not answer: {error_text}", fix="start it: ray start --head")


def _end_with_input(connected: threading.Event) -> None:
    """Ends the driver with the daemon during the connection attempt, which is endless without a cluster."""
    poller = select.poll()
    poller.register(0, select.POLLHUP)
    poller.poll()
    if not connected.is_set():
        os._exit(0)


def main() -> None:
    # Everything printed by Ray or other libraries goes to the log; reports have the output to themselves.
    """Runs the driver until its input ends; an error, such as a cluster that does not answer, is reported, with exit
    status 1.
    """
    output = os.dup(1)
    os.dup2(2, 1)
    lines = iter(sys.stdin.buffer.readline, b"")
    options = json_decoder(DriverOptions).decode(next(lines))
    connected = threading.Event()
    threading.Thread(target=_end_with_input, args=(connected,), name="input", daemon=True).start()
    try:
        connect(options)
        connected.set()
        Driver(options, lines, output).run()
    except Exception as error:
        os.write(output, line(why_away(error, options.address)))
        raise SystemExit(1) from error
    finally:
        with suppress(Exception):
            ray.shutdown()


if __name__ == "__main__":
    main()
