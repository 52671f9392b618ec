"""`RayCluster`: what Ray's control store and its nodes say of memory, actors and placement groups."""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

import msgspec
import ray
from ray.util import list_named_actors, remove_placement_group
from ray.util.placement_group import get_placement_group, placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rftd.ops.decoding import json_decoder
from rftd.workers.devices.discovery import find_host
from rftd.workers.hosts.ray.deaths import reason_of
from rftd.workers.hosts.ray.messages import RayNode


class NodeSize(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a node."""

    memory_bytes: int = 0
    """All of its memory; 0: it did not say."""
    gpu_memory_bytes: int = 0
    """All memory of its largest GPU; 0: it has none, or did not say."""


UNSIZED: Final = NodeSize()


class NodeSizes:
    """The nodes that were asked, and what they answered."""

    def __init__(self) -> None:
        self.known: dict[str, NodeSize] = {}
        """By the node's id; of one that cannot say it, such as a node without rftd, `UNSIZED`."""
        self._asked: dict[str, Any] = {}

    def look(self, nodes: Set[str]) -> None:
        """Asks the nodes that are new, and takes in what has been answered; those that are gone are forgotten."""
        for gone in (self.known.keys() | self._asked.keys()) - nodes:
            self.known.pop(gone, None)
            self._asked.pop(gone, None)
        for new in nodes - self.known.keys() - self._asked.keys():
            where = NodeAffinitySchedulingStrategy(new, soft=False)
            task = ray.remote(size_here).options(num_cpus=0, max_retries=0, scheduling_strategy=where)
            self._asked[new] = task.remote()
        for node, answer in list(self._asked.items()):
            if ray.wait([answer], timeout=0)[0]:
                del self._asked[node]
                self.known[node] = _taken(answer)


def size_here() -> bytes:
    """The size of this node."""
    # With no variables: those of a task without a GPU hide all of them.
    host = find_host({})
    cpu = next(each for each in host.devices if each.kind == "cpu")
    largest_bytes = max((gpu.memory_bytes for gpu in host.gpus), default=0)
    return msgspec.json.encode(NodeSize(memory_bytes=cpu.memory_bytes, gpu_memory_bytes=largest_bytes))


def _taken(answer: Any) -> NodeSize:
    try:
        return json_decoder(NodeSize).decode(ray.get(answer))
    except (ray.exceptions.RayError, msgspec.DecodeError):
        return UNSIZED


class RayCluster:
    """The answers of Ray's control store. Each method asks it, and takes milliseconds."""

    def __init__(self, *, local_log: bool) -> None:
        self._local_log = local_log
        self._address = ray.util.get_node_ip_address()
        self.nodes: tuple[RayNode, ...] = ()
        self._sizes = NodeSizes()

    def look(self) -> None:
        """Reads the nodes and what is free on them."""
        free = ray._private.state.available_resources_per_node()
        alive = [each for each in ray.nodes() if each["Alive"]]
        self._sizes.look({each["NodeID"] for each in alive})
        self.nodes = tuple(
            RayNode(
                id=each["NodeID"],
                address=each["NodeManagerAddress"],
                gpus=each["Resources"].get("GPU", 0.0),
                free_gpus=free.get(each["NodeID"], {}).get("GPU", 0.0),
                cpus=each["Resources"].get("CPU", 0.0),
                free_cpus=free.get(each["NodeID"], {}).get("CPU", 0.0),
                sized=each["NodeID"] in self._sizes.known,
                memory_bytes=self._sizes.known.get(each["NodeID"], UNSIZED).memory_bytes,
                gpu_memory_bytes=self._sizes.known.get(each["NodeID"], UNSIZED).gpu_memory_bytes,
            )
            for each in alive
        )

    def unreached(self) -> list[str]:
        """Addresses of nodes that do not reach the log."""
        return sorted({each.address for each in self.nodes} - {self._address}) if self._local_log else []

    def actors_of(self, place: str) -> list[dict[str, str]]:
        """Names and namespaces of the actors of a place that have not ended."""
        return [each for each in list_named_actors(all_namespaces=True) if each["name"].startswith(f"{place}#")]

    def workers_of(self, place: str) -> tuple[UUID, ...]:
        """The workers whose actors are in a place; their further nodes have actors of their own."""
        numbers = [each["name"].removeprefix(f"{place}#") for each in self.actors_of(place)]
        return tuple(UUID(number) for number in numbers if "/" not in number)

    def remove_groups(self, place: str) -> None:
        """Gives back what actors of a place that ended by themselves still hold."""
        for each in placement_group_table().values():
            if each["name"].startswith(f"{place}#") and each["state"] != "REMOVED":
                with suppress(ValueError):
                    remove_placement_group(get_placement_group(each["name"]))

    def node_of(self, name: str) -> str:
        """The address of the node of an actor."""
        found = self._info(name)
        return str(found["Address"]["IPAddress"]) if found else ""

    def death_of(self, name: str) -> str:
        """Why an actor ended; empty if Ray does not know of it, or it has not."""
        found = self._info(name)
        if not found or found["State"] != "DEAD":
            return ""
        exit_type, detail = _exit_of(int(found["Pid"]), str(found["Address"]["NodeID"]))
        return reason_of(found.get("DeathCause"), exit_type, detail, str(found["Address"]["IPAddress"]))

    def _info(self, name: str) -> dict[str, Any]:
        every = ray._private.state.actors().values()
        return next((each for each in every if each["Name"] == name), {})


def _exit_of(pid: int, node: str) -> tuple[str, str]:
    """The kind of a worker process's end in Ray's words, `NODE_OUT_OF_MEMORY` and the like, and the details."""
    from ray.core.generated import common_pb2, gcs_pb2

    accessor = ray._private.state.state._global_state_accessor
    for text in accessor.get_worker_table():
        row = gcs_pb2.WorkerTableData.FromString(text)
        if row.pid == pid and row.worker_address.node_id.hex() == node and not row.is_alive:
            return common_pb2.WorkerExitType.Name(row.exit_type), row.exit_detail
    return "", ""
