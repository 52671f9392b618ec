"""The nodes that a worker takes. Pure.

A worker is on one node, or on as many as its order says, with as many of its GPUs on each: so the configuration guide
places a trainer that has more GPUs than a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rftd.workers.hosts.ray.messages import RayNode

CPUS: Final = 1
"""Processors that Ray counts for a worker: its threads are its own affair."""


def bundles_of(devices: int, nodes: int) -> list[dict[str, float]]:
    """The resources of a worker with so many GPUs on so many nodes: those of each node."""
    each = devices // nodes
    return [{"CPU": CPUS, "GPU": each} if each else {"CPU": CPUS}] * nodes


def strategy_of(nodes: int) -> str:
    """Ray's word for where the bundles go: all on one node, or each on a node of its own."""
    return "STRICT_SPREAD" if nodes > 1 else "STRICT_PACK"


def lack_of(devices: int, wanted: int, nodes: Sequence[RayNode]) -> str:
    """The resources that a worker on `wanted` nodes waits for, and how much is free: `2 GPUs on one node; 1 is free`.

    Never empty where there is no room; empty if there is by what was last seen: Ray is about to place it.
    """
    if not nodes:
        return "a node: the cluster has none"
    each = devices // wanted
    gpus = f"{each} GPU{'s' if each > 1 else ''}" if each else ""
    if wanted > 1:
        free = sum(node.free_cpus >= CPUS and node.free_gpus >= each for node in nodes)
        what = f"{gpus} and {CPUS} CPU" if each else f"{CPUS} CPU"
        return "" if free >= wanted else f"{what} on each of {wanted} nodes; {_are(free)} free"
    if not each:
        free_cpus = max(node.free_cpus for node in nodes)
        return "" if free_cpus >= CPUS else f"{CPUS} CPU on one node; {_are(free_cpus)} free"
    per_node = _per_node(nodes)
    if each <= per_node:
        most = max(node.free_gpus for node in nodes)
        if most >= each:
            return f"{gpus} and {CPUS} CPU on one node; no node has both free"
        return f"{gpus} on one node; {_are(most)} free"
    if not per_node:
        return f"{gpus} on one node; the cluster has none"
    return f"{gpus} on one node; no node has more than {per_node}"


def _per_node(nodes: Sequence[RayNode]) -> int:
    return int(max((each.gpus for each in nodes), default=0))


def _are(count: float) -> str:
    return "none is" if count < 1 else "1 is" if count < 2 else f"{count:g} are"
