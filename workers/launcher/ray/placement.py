"""The nodes that a worker takes. Pure.

The configuration guide's rule: a worker is on one node, unless it takes more GPUs than a node has; then it takes whole
nodes. The actor itself is on the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rftd.workers.launcher.ray.messages import RayNode

CPUS: Final = 1
"""Processors that Ray counts for a worker: its threads are its own affair."""


class Bundles(NamedTuple):
    """The resources of a placement group."""

    resources: list[dict[str, float]]
    strategy: str
    """Ray's strategy: STRICT_PACK is one node, STRICT_SPREAD as many nodes as bundles."""


def bundles_of(devices: int, nodes: Sequence[RayNode]) -> Bundles:
    """The bundles of a worker with so many GPUs, on a cluster of these nodes."""
    per_node = _per_node(nodes)
    if not devices:
        return Bundles([{"CPU": CPUS}], "STRICT_PACK")
    if devices <= per_node or not per_node or devices % per_node:
        return Bundles([{"CPU": CPUS, "GPU": devices}], "STRICT_PACK")
    return Bundles([{"CPU": CPUS, "GPU": per_node}] * (devices // per_node), "STRICT_SPREAD")


def lack_of(devices: int, nodes: Sequence[RayNode]) -> str:
    """The resources that a worker waits for, and how much of them is free: `2 GPUs on one node; 1 is free`.

    Empty if there is room by what was last seen: Ray is about to place it.
    """
    per_node = _per_node(nodes)
    if not nodes:
        return "a node: the cluster has none"
    if not devices:
        free_cpus = max(each.free_cpus for each in nodes)
        return "" if free_cpus >= CPUS else f"{CPUS} CPU on one node; {_are(free_cpus)} free"
    gpus = "1 GPU" if devices == 1 else f"{devices} GPUs"
    if devices <= per_node:
        most = max(each.free_gpus for each in nodes)
        if most >= devices:
            return f"{gpus} and {CPUS} CPU on one node; no node has both free"
        return f"{gpus} on one node; {_are(most)} free"
    if not per_node:
        return f"{gpus} on one node; the cluster has none"
    if devices % per_node:
        return f"{gpus}: more than a node has, and no whole number of nodes of {per_node}"
    free = sum(each.free_gpus >= per_node for each in nodes)
    return f"{devices // per_node} whole nodes of {per_node} GPUs; {_are(free)} free"


def _per_node(nodes: Sequence[RayNode]) -> int:
    return int(max((each.gpus for each in nodes), default=0))


def _are(count: float) -> str:
    return "none is" if count < 1 else "1 is" if count < 2 else f"{count:g} are"
