"""Workflows of Trinity-RFT by name that rftd does not have: what each needs, and the way to run its class."""

from __future__ import annotations

from typing import Final

from rftd.ops.errors import ConfigError

_ADAPTER: Final = "submit the class: default_workflow_type: ./FILE.py:{name} (docs/extending.md, Trinity-RFT's classes)"
_AGENT: Final = "write the agent as a program: agent_program_workflow (docs/agent_programs.md), on the same package"
_ALFWORLD: Final = "the simulator ALFWorld with its games"
_JUDGED: Final = "training of its judge beside its answers, and a rollout has one reward"
_SCOPE: Final = "the package agentscope"
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
    "math_trainable_ruler_workflow": _JUDGED,
    "agentscope_workflow_adapter": _SCOPE,
    "agentscope_workflow_adapter_v1": _SCOPE,
    "agentscope_react_workflow": _SCOPE,
    "agentscope_react_math_workflow": _SCOPE,
    "as_react_workflow": _SCOPE,
    "agentscopev0_react_math_workflow": _SCOPE,
    "agentscope_v1_react_search_workflow": "the package agentscope and a search service",
}
ABSENT: Final = tuple(_NEEDS)
"""The names, each with a reason."""


def check_absent(name: str) -> None:
    """Raises ConfigError, with the need and the adapter, for a workflow of Trinity-RFT that rftd does not have."""
    need = _NEEDS.get(name)
    if need is None:
        return
    fix = _AGENT if need.startswith(_SCOPE) else _ADAPTER.format(name=name)
    if need == _JUDGED:
        fix = "let an auxiliary model judge: math_ruler_workflow"
    elif "images" in need:
        fix = "leave images out: simple_workflow"
    raise ConfigError(f"{name} of Trinity-RFT needs {need}: rftd does not have it", fix=fix)
