"""Names of the workflows on AgentScope, and the line by which the daemon's owner allows one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

AGENTSCOPE_WORKFLOWS: Final = frozenset(
    {
        "agentscope_react_workflow",
        "agentscope_react_math_workflow",
        "agentscope_v1_react_search_workflow",
        "agentscope_workflow_adapter",
        "agentscope_workflow_adapter_v1",
        "agentscopev0_react_math_workflow",
        "as_react_workflow",
    }
)
"""Workflows running commands by a Python with AgentScope."""


def agentscope_line(workflow: str, arguments: Mapping[str, Any]) -> str:
    """Returns the command line compared with the patterns of `allow_commands`: `PYTHON WORKFLOW SEARCH_COMMAND`."""
    search_command = arguments.get("search_command") or ()
    words = search_command if isinstance(search_command, list | tuple) else (search_command,)
    return shlex.join([str(arguments.get("python") or "python"), workflow, *map(str, words)])
