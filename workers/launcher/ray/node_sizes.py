"""`NodeSizes`: the memory of each node and of its GPUs. Ray's control store does not have it: each node says its own.

It is asked once, by a task that takes no processor of it; nothing waits for its answer.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Final

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rftd.ops.decoding import json_decoder
from rftd.workers.devices.discovery import find_host


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
