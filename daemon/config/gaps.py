"""`gap_issues` refuses values still to be filled in: `???`, as written by OmegaConf and imports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Issue, WrongValue

GAP: Final = "???"
"""Text of a missing value."""
_FIX: Final = "write the value; in an imported file, the comment lists possible values"
"""Advice for a gap."""


def gap_issues(tree: dict[str, Any]) -> list[Issue]:
    """Returns an issue for each field with a gap as value."""
    return [Issue(path, f"is a gap (`{GAP}`): its value is missing", _FIX, WrongValue) for path in _gaps(tree, ())]


def _gaps(node: Any, path: FieldPath) -> Iterator[FieldPath]:
    """Yields the paths of gaps below a node."""
    if isinstance(node, dict):
        for key, child in node.items():
            yield from _gaps(child, (*path, key))
    elif isinstance(node, list):
        for index, child in enumerate(node):
            yield from _gaps(child, (*path, index))
    elif node == GAP:
        yield path
