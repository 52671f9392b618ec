"""`WorkerActor` and `RankHostActor`: the Ray actors for workers, and for a trainer's ranks on further nodes.

The methods are plain, not coroutines: with a single coroutine Ray would run all methods on an event loop. Ray calls
each method on a thread, several at once, so that a running worker can be stopped.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Final

import msgspec

from rftd.ops import limits
from rftd.ops.cycles import tune_collector
from rftd.ops.decoding import json_decoder
from rftd.ops.logs import configure, logger
from rftd.ops.own_folder import FolderAccess, close_to_others
from rftd.workers.engines.ranks.host import RankHost
from rftd.workers.engines.ranks.nodes import RANK_NODES, RankHostPlace, RankNodes
from rftd.workers.guest import Guest, Outcome
from rftd.workers.hosts.leftovers import MARK
from rftd.workers.hosts.ray.arrival import end_predecessors, redirect_output, refusal_of, take_variables, variables_of
from rftd.workers.hosts.ray.messages import ActorOrder
from rftd.workers.hosts.ray.placement import CPUS
from rftd.workers.hosts.started_here import StartedHere

OUTCOME_TIMEOUT_S: Final = 20.0
"""Seconds to wait for the daemon to fetch the outcome, and as many again to be ended by it; then the actor ends itself.
"""


class HostBegun(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `RankHostActor.begin`: the listening address, or a refusal."""

    listening: RankHostPlace | None = None
    """The address and the key for starting ranks there; None after a refusal."""
    refusal: str = ""
    """The reason why the node is unfit; empty if it listens."""


class RankHostActor:
    """An actor that starts a trainer's ranks on its node, and forwards their output to the trainer."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        """Held while listening begins."""
        self._host: RankHost | None = None
        """The listening host; None before `begin`."""

    def begin(self, order: bytes) -> bytes:
        """Starts listening, unless started before; returns an encoded `HostBegun`. `order` is the worker's encoded
        `ActorOrder`.
        """
        import ray.util

        actor_order = json_decoder(ActorOrder).decode(order)
        node = ray.util.get_node_ip_address()
        with self._turn:
            if (refusal := refusal_of(actor_order, node)) != "":
                return msgspec.json.encode(HostBegun(refusal=refusal))
            if self._host is None:
                take_variables(actor_order)
                end_predecessors(os.environ[MARK])
                self._host = RankHost(node)
            listening = RankHostPlace(address=node, port=self._host.port, key=self._host.key)
        return msgspec.json.encode(HostBegun(listening=listening))


def host_actors(order: ActorOrder) -> list[Any]:
    """Creates a `RankHostActor` on each further node of a trainer; Ray ends them with the calling actor."""
    import ray
    from ray.util import get_current_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = get_current_placement_group()
    actors = []
    for number in range(1, order.nodes):
        # A separate mark: where nodes share a machine, the actors of a worker would otherwise end each other.
        mark = f"{order.place}/node_{number}"
        options: dict[str, Any] = {
            "name": f"{order.name}/node_{number}",
            "namespace": order.namespace,
            "max_restarts": 0,
            "max_task_retries": 0,
            "num_cpus": CPUS,
            "num_gpus": order.devices_of_a_node,
            "runtime_env": {"env_vars": variables_of(order, mark)},
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, number),
        }
        actors.append(ray.remote(RankHostActor).options(**options).remote())
    return actors


class ActorBegun(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `WorkerActor.begin`: the worker's pid, or a refusal."""

    pid: int
    """Process id of the worker."""
    refusal: str = ""
    """The reason why the node is unfit; empty if the worker runs."""


class WorkerActor:
    """An actor that runs one worker in its own process. Child processes end with the worker."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        """Held while the worker is started."""
        self._guest: Guest | None = None
        """The worker's process; None before `begin`."""
        self._over = threading.Event()
        """Set once the worker has ended."""
        self._outcome_sent = threading.Event()
        """Set once the daemon has fetched the outcome."""
        self._outcome = Outcome(code=0)
        """How the worker ended."""
        self._hosts: list[Any] = []
        """The actors of its other nodes, which end with this one."""

    def begin(self, order: bytes) -> bytes:
        """Starts the worker of the encoded `ActorOrder`, unless started before; returns an encoded `ActorBegun`."""
        actor_order = json_decoder(ActorOrder).decode(order)
        with self._turn:
            refusal = "" if self._guest is not None else self._start_worker(actor_order)
        return msgspec.json.encode(ActorBegun(pid=os.getpid(), refusal=refusal))

    def outcome(self) -> bytes:
        """Blocks until the worker has ended; returns its encoded `Outcome`."""
        self._over.wait()
        self._outcome_sent.set()
        return msgspec.json.encode(self._outcome)

    def stop(self) -> None:
        """Asks the worker to finish running rollouts and exit; without effect before the start."""
        if self._guest is not None:
            self._guest.stop()

    def _start_worker(self, order: ActorOrder) -> str:
        """Prepares the process and starts the guest; returns the reason of a refusal, or an empty text."""
        import ray.util

        node = ray.util.get_node_ip_address()
        if (refusal := refusal_of(order, node)) != "":
            return refusal
        close_to_others(FolderAccess(os.environ.get("RFTD_FOLDERS") or FolderAccess.PRIVATE))
        redirect_output(Path(order.log_path), node if order.by_node else "")
        take_variables(order)
        configure(level=order.log_level)
        assignment = order.assignment
        if assignment.role == "explorer":  # a trainer's cycles may hold activations
            tune_collector()
        os.environ.setdefault(MARK, order.place)
        end_predecessors(os.environ[MARK])
        if order.nodes > 1 and (refusal := self._start_rank_hosts(order, node)) != "":
            return refusal
        started = StartedHere()
        self._guest = Guest(assignment, logger(role=assignment.role, slot=assignment.slot, node=node))
        self._guest.begin()
        threading.Thread(target=self._watch, args=(self._guest, started), name="watch", daemon=True).start()
        return ""

    def _start_rank_hosts(self, order: ActorOrder, node: str) -> str:
        """Starts rank hosts on the other nodes, and passes the addresses to the engine; returns the refusals of unfit
        nodes.
        """
        import ray

        self._hosts = host_actors(order)
        calls = [host_actor.begin.remote(msgspec.json.encode(order)) for host_actor in self._hosts]
        answers = [json_decoder(HostBegun).decode(answer) for answer in ray.get(calls, timeout=limits.RANK_NODES_S)]
        nodes = RankNodes(own=node, hosts=tuple(answer.listening for answer in answers if answer.listening is not None))
        os.environ[RANK_NODES] = msgspec.json.encode(nodes).decode()
        return "; ".join(answer.refusal for answer in answers if answer.refusal)

    def _watch(self, guest: Guest, started: StartedHere) -> None:
        """Waits for the guest's end, keeps the outcome for the daemon, then ends the actor."""
        ended = guest.outcome()
        assert ended is not None
        started.end()
        self._outcome = ended
        self._over.set()
        self._outcome_sent.wait(OUTCOME_TIMEOUT_S)
        # A live daemon ends the actor after receiving the outcome; the daemon may have died long before.
        threading.Event().wait(OUTCOME_TIMEOUT_S)
        # The daemon is gone. The placement group is detached from every job, so nobody else would release the
        # resources; removing the group ends the actor, too.
        from ray.util import get_current_placement_group, remove_placement_group

        try:
            if (group := get_current_placement_group()) is not None:
                remove_placement_group(group)
            threading.Event().wait(OUTCOME_TIMEOUT_S)
        finally:
            os._exit(ended.code)
