"""Section `cluster`: nodes and GPUs; process slots where there is no GPU."""

from __future__ import annotations

from rftd.daemon.config.schema.section import Natural, Section, inert


class Cluster(Section):
    """`cluster`; the derived counts of the guide are not fields of the file."""

    ray_address: str = inert("auto")
    node_num: Natural | None = 0
    """0 = what there is."""
    gpu_per_node: Natural | None = 0
