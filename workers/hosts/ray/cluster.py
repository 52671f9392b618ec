"""`RayCluster`: nodes, actors and placement groups, read from Ray's control store."""

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
    """A node's total memory and the total memory of its largest GPU, as measured on the node."""

    memory_bytes: int = 0
    """Total memory of the node; 0: unknown."""
    gpu_memory_bytes: int = 0
    """Total memory of its largest GPU; 0: no GPU, or unknown."""


UNSIZED: Final = NodeSize()
"""The size of a node unable to measure it."""


class NodeSizes:
    """Measures the memory of nodes, by one Ray task on each."""

    def __init__(self) -> None:
        self.known: dict[str, NodeSize] = {}
        """Sizes by node id; `UNSIZED` for a node that failed to answer, such as one without rftd."""
        self._size_tasks: dict[str, Any] = {}
        """Task measuring each new node."""

    def refresh(self, nodes: Set[str]) -> None:
        """Starts a task on each new node, stores finished tasks' answers, and drops nodes missing from `nodes`."""
        for lost_node in (self.known.keys() | self._size_tasks.keys()) - nodes:
            self.known.pop(lost_node, None)
            self._size_tasks.pop(lost_node, None)
        for node_id in nodes - self.known.keys() - self._size_tasks.keys():
            where = NodeAffinitySchedulingStrategy(node_id, soft=False)
            task = ray.remote(size_of_this_node).options(num_cpus=0, max_retries=0, scheduling_strategy=where)
            self._size_tasks[node_id] = task.remote()
        for node, answer in list(self._size_tasks.items()):
            if ray.wait([answer], timeout=0)[0]:
                del self._size_tasks[node]
                self.known[node] = _decode_size(answer)


def size_of_this_node() -> bytes:
    """Returns the encoded `NodeSize` of the calling machine; runs as a Ray task."""
    # With no variables: a task without a GPU has variables hiding all GPUs.
    host = find_host({})
    cpu = next(device for device in host.devices if device.kind == "cpu")
    largest_bytes = max((gpu.memory_bytes for gpu in host.gpus), default=0)
    return msgspec.json.encode(NodeSize(memory_bytes=cpu.memory_bytes, gpu_memory_bytes=largest_bytes))


def _decode_size(answer: Any) -> NodeSize:
    """Returns the size answered by a task; `UNSIZED` if the task failed."""
    try:
        return json_decoder(NodeSize).decode(ray.get(answer))
    except (ray.exceptions.RayError, msgspec.DecodeError):
        return UNSIZED


class RayCluster:
    """Reads Ray's control store; each method is a query of some milliseconds."""

    def __init__(self, *, local_log: bool) -> None:
        """`local_log`: only the daemon's machine can reach the log."""
        self._local_log = local_log
        self._address = ray.util.get_node_ip_address()
        """Address of the daemon's node."""
        self.nodes: tuple[RayNode, ...] = ()
        """Living nodes at the last `refresh`."""
        self._sizes = NodeSizes()
        """Memory of the nodes."""

    def refresh(self) -> None:
        """Reads the living nodes, with their free resources and known memory, into `nodes`."""
        free = ray._private.state.available_resources_per_node()
        alive = [node for node in ray.nodes() if node["Alive"]]
        self._sizes.refresh({node["NodeID"] for node in alive})
        self.nodes = tuple(
            RayNode(
                id=node["NodeID"],
                address=node["NodeManagerAddress"],
                gpus=node["Resources"].get("GPU", 0.0),
                free_gpus=free.get(node["NodeID"], {}).get("GPU", 0.0),
                cpus=node["Resources"].get("CPU", 0.0),
                free_cpus=free.get(node["NodeID"], {}).get("CPU", 0.0),
                sized=node["NodeID"] in self._sizes.known,
                memory_bytes=self._sizes.known.get(node["NodeID"], UNSIZED).memory_bytes,
                gpu_memory_bytes=self._sizes.known.get(node["NodeID"], UNSIZED).gpu_memory_bytes,
            )
            for node in alive
        )

    def unreached(self) -> list[str]:
        """Returns the addresses of nodes unable to reach the log; empty unless the log is a socket of the daemon's
        machine.
        """
        return sorted({node.address for node in self.nodes} - {self._address}) if self._local_log else []

    def actors_of(self, slot: str) -> list[dict[str, str]]:
        """Returns name and namespace of each living actor of a slot, of any worker."""
        return [actor for actor in list_named_actors(all_namespaces=True) if actor["name"].startswith(f"{slot}#")]

    def workers_of(self, slot: str) -> tuple[UUID, ...]:
        """Returns the ids of the workers with a living actor in the slot; actors of a worker's further nodes do not
        count.
        """
        numbers = [actor["name"].removeprefix(f"{slot}#") for actor in self.actors_of(slot)]
        return tuple(UUID(number) for number in numbers if "/" not in number)

    def remove_groups(self, slot: str) -> None:
        """Removes all placement groups of a slot, which releases their resources; to be called once no actor of the
        slot lives.
        """
        for group in placement_group_table().values():
            if group["name"].startswith(f"{slot}#") and group["state"] != "REMOVED":
                with suppress(ValueError):
                    remove_placement_group(get_placement_group(group["name"]))

    def node_of(self, name: str) -> str:
        """Returns the address of the node that an actor runs on; empty for an unknown actor."""
        info = self._actor_record(name)
        return str(info["Address"]["IPAddress"]) if info else ""

    def death_of(self, name: str) -> str:
        """Returns why an actor ended, in words; empty while it lives, and for an actor unknown to Ray."""
        info = self._actor_record(name)
        if not info or info["State"] != "DEAD":
            return ""
        exit_type, detail = _exit_of(int(info["Pid"]), str(info["Address"]["NodeID"]))
        return reason_of(info.get("DeathCause"), exit_type, detail, str(info["Address"]["IPAddress"]))

    def _actor_record(self, name: str) -> dict[str, Any]:
        """Returns Ray's record of an actor; empty for an unknown one."""
        every = ray._private.state.actors().values()
        return next((actor for actor in every if actor["Name"] == name), {})


def _exit_of(pid: int, node: str) -> tuple[str, str]:
    """Returns the kind of a worker process's end in Ray's words, for example `NODE_OUT_OF_MEMORY`, and the details."""
    from ray.core.generated import common_pb2, gcs_pb2

    accessor = ray._private.state.state._global_state_accessor
    for text in accessor.get_worker_table():
        row = gcs_pb2.WorkerTableData.FromString(text)
        if row.pid == pid and row.worker_address.node_id.hex() == node and not row.is_alive:
            return common_pb2.WorkerExitType.Name(row.exit_type), row.exit_detail
    return "", ""
