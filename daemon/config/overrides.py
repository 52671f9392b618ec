"""`apply_overrides` sets fields from the command line, by `-s key=value` in either spelling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rftd.daemon.config import normalise
from rftd.daemon.config.field_path import FieldPath, parse, show
from rftd.daemon.config.issue import ConfigErrors, Issue, LimitIssue, SyntaxIssue
from rftd.daemon.config.plain import depth_of
from rftd.daemon.config.source import SourceMap, SourcePlace
from rftd.daemon.config.yaml_source import parse_yaml
from rftd.ops import limits


def apply_overrides(tree: dict[str, Any], overrides: Sequence[str], source: SourceMap) -> list[Issue]:
    """Sets each `key=value` in `tree`, the value read as YAML; returns what could not be set."""
    issues: list[Issue] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        place = SourcePlace(f"-s {key.strip()[:120]}")
        path = parse(key.strip())
        if not equals or path is None or len(path) > limits.CONFIG_DEPTH:
            fix = "write -s section.field=value, for example -s buffer.batch_size=4"
            issues.append(Issue((), "an override is written key=value", fix, SyntaxIssue, place=place))
            continue
        try:
            value, _, problems = parse_yaml(text, str(place))
        except ConfigErrors as error:
            issues.append(Issue(path, f"the value is {error.errors[0].what}", "quote it", SyntaxIssue, place=place))
            continue
        # Each override is shallow by itself, and many of them could still build a tree that is too deep to
        # walk.
        if len(path) + depth_of(value) > limits.CONFIG_DEPTH:
            what = f"nested deeper than {limits.CONFIG_DEPTH} levels"
            issues.append(Issue(path[:4], what, None, LimitIssue, place=place))
            continue
        issues += [Issue(path, problem.what, problem.fix, problem.kind, place=place) for problem in problems]
        path = normalise.current_name(path)
        source.flags[path] = text.strip()
        issue = _set(tree, path, value, source, place)
        if issue is not None:
            issues.append(issue)
    return issues


def _set(tree: dict[str, Any], path: FieldPath, value: Any, source: SourceMap, place: SourcePlace) -> Issue | None:
    node: Any = tree
    for depth, part in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(node, list):
            if not isinstance(part, int) or part >= len(node):
                what = f"{show(path[:depth])} is a list of {len(node)}: an item is named by its index, from 0"
                return Issue(
                    path, what, f"write {show((*path[:depth], 0))}" if node else None, SyntaxIssue, place=place
                )
        elif isinstance(node, dict):
            # `0` is an index in a list and a key in a mapping: only the node tells which.
            part = str(part)
            if not last and node.get(part) is None:
                node[part] = {}
                source.keys.setdefault(path[: depth + 1], place)
        else:
            what = f"{show(path[:depth])} is a single value, it has no field {part}"
            return Issue(path, what, None, SyntaxIssue, place=place)
        if not last:
            node = node[part]
            continue
        node[part] = value
        full = tuple(path)
        # What stood below the field in the file is gone, and an error must not point at it any more.
        for known in [known for known in source.values if known[: len(full)] == full]:
            source.values.pop(known)
            source.keys.pop(known, None)
        # The override names the field by its current name, whatever the file called it.
        source.moved.pop(full, None)
        source.values[full] = source.keys[full] = place
    return None
