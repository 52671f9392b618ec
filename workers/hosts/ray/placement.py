"""The nodes of a worker. Pure.

A worker is on a single node, or on the ordered number of nodes, with an equal share of the GPUs on each: the
configuration guide's placement of a trainer with more GPUs than a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rftd.workers.hosts.ray.messages import RayNode

CPUS: Final = 1
"""Processors reserved in Ray for a worker, independent of its number of threads."""


def bundles_of(devices: int, nodes: int) -> list[dict[str, float]]:
    """Returns Ray's resource bundles, one for each of `nodes` nodes, of a worker with `devices` GPUs in total."""
    gpus_per_node = devices // nodes
    return [{"CPU": CPUS, "GPU": gpus_per_node} if gpus_per_node else {"CPU": CPUS}] * nodes


def strategy_of(nodes: int) -> str:
    """Returns Ray's placement strategy for a worker's bundles: each on a separate node, or on a single node if there is
    one.
    """
    return "STRICT_SPREAD" if nodes > 1 else "STRICT_PACK"


def lack_of(devices: int, node_count: int, nodes: Sequence[RayNode]) -> str:
    """Returns what the cluster lacks for a worker with `devices` GPUs on `node_count` nodes, and how much is free: `2
    GPUs on one node; 1 is free`.

    Empty if the last known state of `nodes` has room: Ray is about to place the worker.
    """
    if not nodes:
        return "a node, but the cluster has none"
    gpus_per_node = devices // node_count
    gpus = f"{gpus_per_node} GPU{'s' if gpus_per_node > 1 else ''}" if gpus_per_node else ""
    if node_count > 1:
        free = sum(node.free_cpus >= CPUS and node.free_gpus >= gpus_per_node for node in nodes)
        resources = f"{gpus} and {CPUS} CPU" if gpus_per_node else f"{CPUS} CPU"
        return "" if free >= node_count else f"{resources} on each of {node_count} nodes; {_count_words(free)} free"
    if not gpus_per_node:
        free_cpus = max(node.free_cpus for node in nodes)
        return "" if free_cpus >= CPUS else f"{CPUS} CPU on one node; {_count_words(free_cpus)} free"
    per_node = _per_node(nodes)
    if gpus_per_node <= per_node:
        most = max(node.free_gpus for node in nodes)
        if most >= gpus_per_node:
            return f"{gpus} and {CPUS} CPU on one node; no node has both free"
        return f"{gpus} on one node; {_count_words(most)} free"
    if not per_node:
        return f"{gpus} on one node; the cluster has none"
    return f"{gpus} on one node; no node has more than {per_node}"


def _per_node(nodes: Sequence[RayNode]) -> int:
    """Returns the largest number of GPUs on a node."""
    return int(max((node.gpus for node in nodes), default=0))


def _count_words(count: float) -> str:
    """Returns a number of free devices in words, with the verb."""
    return "none is" if count < 1 else "1 is" if count < 2 else f"{count:g} are"
