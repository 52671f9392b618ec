"""Workflows of Trinity-RFT by name that rftd does not have: what each needs, and the way to run its class."""

from __future__ import annotations

from typing import Final

from rftd.ops.errors import ConfigError

_ADAPTER: Final = "submit the class: default_workflow_type: ./FILE.py:{name} (docs/extending.md, Trinity-RFT's classes)"
"""Fix for a class that can be submitted as a file."""
_ALFWORLD: Final = "the simulator ALFWorld with its games"
_NEEDS: Final = {
    "alfworld_workflow": _ALFWORLD,
    "step_wise_alfworld_workflow": _ALFWORLD,
    "RAFT_alfworld_workflow": _ALFWORLD,
    "RAFT_reflect_alfworld_workflow": _ALFWORLD,
    "sciworld_workflow": "the simulator ScienceWorld, which runs on Java",
    "webshop_workflow": "the simulator WebShop with its catalogue",
    "intercode_sql_workflow": "InterCode's containers with its databases",
    "sudoku_workflow": "its generator of puzzles",
    "simple_mm_workflow": "images, and rollout engines take text alone",
    "async_simple_mm_workflow": "images, and rollout engines take text alone",
}
"""Requirement of each workflow of Trinity-RFT that rftd does not have."""
ABSENT: Final = tuple(_NEEDS)
"""The names, each with a reason."""


def check_absent(name: str) -> None:
    """Raises ConfigError, with the need and the adapter, for a workflow of Trinity-RFT that rftd does not have."""
    need = _NEEDS.get(name)
    if need is None:
        return
    fix = "leave images out: simple_workflow" if "images" in need else _ADAPTER.format(name=name)
    raise ConfigError(f"{name} of Trinity-RFT needs {need}: rftd does not have it", fix=fix)
