"""Secrets stay home: they travel as `{env: NAME}` and are read by the role that needs them."""

from __future__ import annotations

import re
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, put, show
from rftd.daemon.config.issue import Issue, SecretIssue
from rftd.daemon.config.source import SourceMap
from rftd.ops.redaction import has_url_credentials, is_secret_field, is_secret_map

ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_NO_SECRET: Final = frozenset({"", "EMPTY"})
"""Values of a secret field that say that there is none, as in the guide's defaults."""


def is_secret_path(path: FieldPath) -> bool:
    """True if the field, or a section around it, holds a secret."""
    names = [part for part in path if isinstance(part, str)]
    return any(is_secret_field(name) for name in names) or any(is_secret_map(name) for name in names[:-1])


def is_no_secret(value: object) -> bool:
    """True for what a secret field may hold openly."""
    return value is None or isinstance(value, bool) or (isinstance(value, str) and value in _NO_SECRET)


def env_reference(name: str) -> dict[str, str]:
    """The form in which a secret travels."""
    return {"env": name}


def refusal(path: FieldPath, what: str = "a secret must not be written into the file") -> Issue:
    """The issue of a secret that would travel as a value."""
    # Workers read such a variable by its own name, as `explorer.env_vars` has it: there is no name to choose.
    inside_map = len(path) > 1 and isinstance(path[-2], str) and is_secret_map(path[-2])
    name = str(path[-1]) if inside_map else _suggestion(path)
    return Issue(path, what, f"export {name}=... and write {show(path[-1:])}: {{env: {name}}}", SecretIssue)


def withhold_secrets(tree: dict[str, Any], source: SourceMap) -> list[Issue]:
    """Replaces every literal secret in `tree` by a reference, and reports each."""
    issues: list[Issue] = []
    _withhold(tree, (), source, issues, secret=False)
    return issues


def _withhold(
    node: dict[str, Any] | list[Any], path: FieldPath, source: SourceMap, issues: list[Issue], *, secret: bool
) -> None:
    items = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
    for key, value in items:
        here: FieldPath = (*path, key)
        named = is_secret_field(key) if isinstance(key, str) else False
        in_map = isinstance(node, dict) and bool(path) and isinstance(path[-1], str) and is_secret_map(path[-1])
        # All below a secret section is secret, whatever it is called: a token may lie in a list in a mapping.
        below = secret or named or in_map or (isinstance(key, str) and is_secret_map(key))
        issue: Issue | None = None
        if below and isinstance(value, dict) and set(value) == {"env"}:
            issue = _check_reference(value["env"], here, must_equal=str(key) if in_map else None)
        elif isinstance(value, dict | list):
            _withhold(value, here, source, issues, secret=below)
        elif (below and not is_no_secret(value)) or (isinstance(value, str) and has_url_credentials(value)):
            issue = refusal(here) if below else refusal(here, "a URL with a password must not be written into the file")
        if issue is not None:
            source.cover(here)
            issues.append(issue)
            # The value goes even though the file is refused: messages, logs and reports of bugs show the
            # tree.
            put(node, key, None)


def _check_reference(name: object, path: FieldPath, must_equal: str | None) -> Issue | None:
    if not isinstance(name, str) or not ENV_NAME.fullmatch(name):
        return refusal(path, "`env` must name an environment variable")
    if must_equal is not None and name != must_equal:
        what = f"a worker reads {must_equal} from its own environment, it cannot be renamed from another variable"
        return Issue(path, what, f"write {must_equal}: {{env: {must_equal}}}", SecretIssue)
    return None


def _suggestion(path: FieldPath) -> str:
    words = [str(part) for part in path if isinstance(part, str)][-1:]
    name = re.sub(r"[^A-Z0-9]+", "_", "_".join(words).upper()).strip("_")
    return name if ENV_NAME.fullmatch(name) else "MY_SECRET"
