"""`ClusterSpec`: what an experiment asks of the cluster that its workers run on, where there is one."""

from __future__ import annotations

import msgspec


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The guide's `cluster.ray_address`, `ray_namespace`, `monitor.enable_ray_timeline` and `log.group_by_node`."""

    address: str = ""
    """The address of the cluster; empty: the daemon's."""
    namespace: str = ""
    """The namespace of the experiment's actors; empty: PROJECT/NAME."""
    timeline: bool = False
    """Its trace is written when its workers have ended."""
    logs_by_node: bool = False
    """Each log is in a folder that is named after the node."""
