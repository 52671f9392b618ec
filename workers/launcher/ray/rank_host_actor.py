"""`RankHostActor`: on each further node of a trainer an actor that starts ranks there, and ends with the trainer's."""

from __future__ import annotations

import os
import threading
from typing import Any

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.workers.launcher.leftovers import MARK
from rftd.workers.launcher.ray.arrival import end_predecessors, refusal_of, take_variables, variables_of
from rftd.workers.launcher.ray.messages import ActorOrder
from rftd.workers.launcher.ray.placement import CPUS
from rftd.workers.training.ranks.host import RankHost
from rftd.workers.training.ranks.nodes import RankHostPlace


class HostBegun(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of an actor that was told to begin."""

    place: RankHostPlace | None = None
    refusal: str = ""
    """The reason why nothing can run on this node; empty if it listens."""


class RankHostActor:
    """The ranks of one node. What they write is told to their trainer, in whose log it is."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._host: RankHost | None = None

    def begin(self, order: bytes) -> bytes:
        """Listens, unless it does; the answer says where, or why not."""
        import ray.util

        wanted = json_decoder(ActorOrder).decode(order)
        node = ray.util.get_node_ip_address()
        with self._turn:
            if (refusal := refusal_of(wanted, node)) != "":
                return msgspec.json.encode(HostBegun(refusal=refusal))
            if self._host is None:
                take_variables(wanted)
                end_predecessors(os.environ[MARK])
                self._host = RankHost(node)
            place = RankHostPlace(address=node, port=self._host.port, key=self._host.key)
        return msgspec.json.encode(HostBegun(place=place))


def host_actors(order: ActorOrder) -> list[Any]:
    """The actors of a trainer's further nodes; Ray ends them when the actor that made them, this one, ends."""
    import ray
    from ray.util import get_current_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = get_current_placement_group()
    found = []
    for number in range(1, order.nodes):
        # A mark of its own: where several nodes are one machine, the actors of a worker would end one another.
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
        found.append(ray.remote(RankHostActor).options(**options).remote())
    return found
