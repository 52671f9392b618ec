"""`check_plain` checks that data from any source is plain and within the limits."""

from __future__ import annotations

import math
from typing import Any

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Issue, LimitIssue
from rftd.ops import limits


def check_plain(tree: Any) -> list[Issue]:
    """Returns the issues preventing `tree` from being logged: depth, size, unusual numbers and texts."""
    issues: list[Issue] = []
    nodes = 0
    chars = 0
    # An explicit stack instead of recursion: the data may be nested deeper than the interpreter allows.
    stack: list[tuple[FieldPath, Any]] = [((), tree)]
    while stack:
        path, node = stack.pop()
        nodes += 1
        # Eight characters per number, about the size in the log, so that a list of numbers counts as well.
        chars += len(node) if isinstance(node, str) else 8
        if nodes > limits.CONFIG_NODES:
            return [Issue((), f"more than {limits.CONFIG_NODES:,} values", None, LimitIssue)]
        if chars > limits.CONFIG_SIZE_BYTES:
            return [Issue((), f"larger than {limits.CONFIG_SIZE_BYTES:,} bytes", None, LimitIssue)]
        if isinstance(node, dict | list):
            if len(path) >= limits.CONFIG_DEPTH:
                issues.append(Issue(path[:4], f"nested deeper than {limits.CONFIG_DEPTH} levels", None, LimitIssue))
                continue
            pairs = node.items() if isinstance(node, dict) else enumerate(node)
            for key, value in pairs:
                problem = _text_problem(key) if isinstance(node, dict) else None
                if problem is not None:
                    issues.append(Issue(path, f"a key {problem[0]}", problem[1], problem[2]))
                else:
                    stack.append(((*path, key), value))
            continue
        problem = _problem(node)
        if problem is not None:
            issues.append(Issue(path, *problem))
    return issues


def depth_of(tree: Any) -> int:
    """Returns the number of nested mappings and lists; 0 for a single value."""
    deepest = 0
    level = [tree]
    while level := [node for node in level if isinstance(node, dict | list)]:
        deepest += 1
        level = [below for node in level for below in (node.values() if isinstance(node, dict) else node)]
    return deepest


def _problem(node: Any) -> tuple[str, str | None, type[Any]] | None:
    """Returns problem, fix and kind of error of a value; None for a plain one."""
    if isinstance(node, str):
        return _text_problem(node)
    if isinstance(node, float) and not math.isfinite(node):
        return f"{node} is not a finite number", None, LimitIssue
    # JSON and msgpack readers elsewhere accept 64 bits; Python would silently write more.
    if isinstance(node, int) and not -(2**63) <= node < 2**63:
        return "the number does not fit into 64 bits", None, LimitIssue
    if node is None or isinstance(node, bool | int | float):
        return None
    return f"a {type(node).__name__} is no plain value", None, LimitIssue


def _text_problem(text: Any) -> tuple[str, str | None, type[Any]] | None:
    """Returns problem, fix and kind of error of a text; None for a valid one."""
    if not isinstance(text, str):
        return f"must be text, not {type(text).__name__}", None, LimitIssue
    if "\0" in text:
        return "holds a NUL character", "remove it", LimitIssue
    try:
        # JSON may spell half of a surrogate pair, accepted by Python but not by UTF-8, and therefore not by the log.
        text.encode()
    except UnicodeEncodeError:
        return "holds a lone surrogate, which is no text", "remove it", LimitIssue
    return None
