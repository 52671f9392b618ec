"""Why Ray ended an actor, in words. Ray records the reason only in the control store, not in the actor or a log."""

from __future__ import annotations

import re
from typing import Any, Final

_MAX_CHARS: Final = 400
"""Maximum characters of a reason."""
_EXIT_DETAIL: Final = re.compile(r"\s*Worker exit detail:\s*(.*)", re.S)
"""The detail in Ray's text about a process's exit."""


def reason_of(cause: Any, exit_type: str, exit_detail: str, node: str) -> str:
    """Returns the reason why Ray ended an actor, in one line.

    `cause` is Ray's ActorDeathCause, or None; `exit_type` and `exit_detail` describe the end of the actor's process,
    empty if unknown; `node` is the node's address.
    """
    where = f" on {node}" if node else ""
    oom = cause is not None and cause.HasField("oom_context")
    if oom or exit_type == "NODE_OUT_OF_MEMORY":
        return memory_reason_of(node, exit_detail)
    if cause is None:
        return f"its actor{where} is gone" + (f": {_shortened(exit_detail)}" if exit_detail else "")
    if cause.HasField("runtime_env_failed_context"):
        return f"its runtime environment could not be made{where}: " + _shortened(
            cause.runtime_env_failed_context.error_message
        )
    if cause.HasField("actor_unschedulable_context"):
        return f"its actor cannot be scheduled: {_shortened(cause.actor_unschedulable_context.error_message)}"
    if cause.HasField("creation_task_failure_context"):
        error = _last_line(cause.creation_task_failure_context.formatted_exception_string)
        return f"its actor could not be made{where}{error}; is the same release of rftd installed there?"
    died = cause.actor_died_error_context
    kind = died.DESCRIPTOR.fields_by_name["reason"].enum_type.values_by_number[died.reason].name
    if kind == "NODE_DIED":
        return f"its node {node} is lost: {_shortened(died.error_message)}"
    if kind == "RAY_KILL":
        return f"its actor{where} was ended by ray.kill"
    if kind == "OWNER_DIED":
        return f"its actor{where} was ended with the process that owned it"
    return f"its actor's process{where} ended: {_shortened(exit_detail or died.error_message)}"


def memory_reason_of(node: str, detail: str) -> str:
    """Returns the reason of an actor ended by the memory monitor of `node`, with a fix and Ray's `detail`."""
    where = f" on {node}" if node else ""
    return (
        f"Ray's memory monitor ended its actor{where}, because the node ran short of memory; free "
        "memory there, or raise RAY_memory_usage_threshold" + (f": {_shortened(detail)}" if detail else "")
    )


def _last_line(trace: str) -> str:
    """Returns the error at the end of a traceback, after a colon and a blank; empty without a traceback."""
    lines = [text.strip() for text in trace.splitlines() if text.strip()]
    return f": {lines[-1][:_MAX_CHARS]}" if lines else ""


def _shortened(text: str) -> str:
    """Returns the exit detail in a text of Ray, or else the whole text, in one line and cut after `_MAX_CHARS`
    characters.
    """
    detail = _EXIT_DETAIL.search(text)
    return " ".join((detail.group(1) if detail else text).split())[:_MAX_CHARS]
