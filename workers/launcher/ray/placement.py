"""The node that a worker takes. Pure.

A worker is on one node. The configuration guide gives one that takes more GPUs than a node has whole nodes: the engines
of this release would use the first of them alone, so such a worker is refused at submission, or waits and is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rftd.workers.launcher.ray.messages import RayNode

CPUS: Final = 1
"""Processors that Ray counts for a worker: its threads are its own affair."""


def bundle_of(devices: int) -> dict[str, float]:
    """The resources of a worker with so many GPUs, all of one node."""
    return {"CPU": CPUS, "GPU": devices} if devices else {"CPU": CPUS}


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
    return f"{gpus} on one node, as a worker of this release must have them; no node has more than {per_node}"


def _per_node(nodes: Sequence[RayNode]) -> int:
    return int(max((each.gpus for each in nodes), default=0))


def _are(count: float) -> str:
    return "none is" if count < 1 else "1 is" if count < 2 else f"{count:g} are"
