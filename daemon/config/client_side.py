"""Client-side preparation: secrets stay on the client as `{env: NAME}`, and paths become absolute for the daemon."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin

from rftd.daemon.config.field_path import FieldPath, put, show
from rftd.daemon.config.gaps import GAP
from rftd.daemon.config.issue import Issue, SecretIssue
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import LocalPath, Section
from rftd.daemon.config.source import SourceMap
from rftd.ops.hub_id import HubId
from rftd.ops.paths import absolute_path
from rftd.ops.redaction import has_url_credentials, is_plain_variable, is_secret_field, is_secret_map

ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
"""A valid name of an environment variable."""
_NO_SECRET: Final = frozenset({"", "EMPTY"})
"""Values of a secret field meaning "no secret", as in the guide's defaults."""


def is_secret_path(path: FieldPath) -> bool:
    """True if the field, or a section around the field, holds a secret."""
    names = [key for key in path if isinstance(key, str)]
    return any(is_secret_field(name) for name in names) or any(is_secret_map(name) for name in names[:-1])


def is_env_variable(path: FieldPath) -> bool:
    """True if the field is an environment variable of workers, as in `explorer.env_vars`."""
    return len(path) > 1 and isinstance(path[-2], str) and is_secret_map(path[-2])


def is_no_secret(content: object) -> bool:
    """True for a value that a secret field may have openly: null, a boolean, or a word for "no secret" such
    as `EMPTY`.
    """
    return content is None or isinstance(content, bool) or (isinstance(content, str) and content in _NO_SECRET)


def env_reference(name: str) -> dict[str, str]:
    """Returns `{env: NAME}`, sent to the daemon in place of a secret, whose value workers read from the variable."""
    return {"env": name}


def refusal(path: FieldPath, problem: str = "a secret must not be written into the file") -> Issue:
    """Returns the issue of a secret written openly at `path`."""
    # Workers read the variable under the name written in `explorer.env_vars`: no other name can be chosen.
    name = str(path[-1]) if is_env_variable(path) else _suggestion(path)
    return Issue(path, problem, f"export {name}=... and write {show(path[-1:])}: {{env: {name}}}", SecretIssue)


def withhold_secrets(tree: dict[str, Any], source: SourceMap) -> list[Issue]:
    """Replaces every literal secret in `tree` by a reference, and returns an issue for each."""
    issues: list[Issue] = []
    _withhold(tree, (), source, issues, secret=False)
    return issues


def _withhold(
    node: dict[str, Any] | list[Any], path: FieldPath, source: SourceMap, issues: list[Issue], *, secret: bool
) -> None:
    """Removes secrets and invalid references `{env: NAME}` below a node, each with an issue; valid references stay.
    `secret` is True if everything below is secret.
    """
    children = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
    for key, value in children:
        child_path: FieldPath = (*path, key)
        named = is_secret_field(key) if isinstance(key, str) else False
        in_map = isinstance(node, dict) and bool(path) and isinstance(path[-1], str) and is_secret_map(path[-1])
        # Everything below a secret section is secret under any name: a token may lie in a list in a mapping.
        below = secret or named or in_map or (isinstance(key, str) and is_secret_map(key))
        issue: Issue | None = None
        if below and isinstance(value, dict) and set(value) == {"env"}:
            issue = _check_reference(value["env"], child_path, must_equal=str(key) if in_map else None)
        elif isinstance(value, dict | list):
            _withhold(value, child_path, source, issues, secret=below)
        elif in_map and is_plain_variable(str(key), value):
            pass
        elif (below and not is_no_secret(value)) or (isinstance(value, str) and has_url_credentials(value)):
            issue = (
                refusal(child_path)
                if below
                else refusal(child_path, "a URL with a password must not be written into the file")
            )
        if issue is not None:
            source.cover(child_path)
            issues.append(issue)
            # The value is removed even though the file is refused: messages, logs and bug reports show the tree.
            put(node, key, None)


def _check_reference(name: object, path: FieldPath, must_equal: str | None) -> Issue | None:
    """Returns the issue of an invalid `{env: NAME}`; None for a valid one."""
    if not isinstance(name, str) or not ENV_NAME.fullmatch(name):
        return refusal(path, "`env` must name an environment variable")
    if must_equal is not None and name != must_equal:
        problem = f"a worker reads {must_equal} from its own environment, it cannot be renamed from another variable"
        return Issue(path, problem, f"write {must_equal}: {{env: {must_equal}}}", SecretIssue)
    return None


def _suggestion(path: FieldPath) -> str:
    """Returns a name for the environment variable of a secret field, made of the last key of its path."""
    words = [str(key) for key in path if isinstance(key, str)][-1:]
    name = re.sub(r"[^A-Z0-9]+", "_", "_".join(words).upper()).strip("_")
    return name if ENV_NAME.fullmatch(name) else "MY_SECRET"


# `Qwen/Qwen3-0.6B` is a repository on a hub, and might be a folder as well: only the disk can tell.
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*")
"""A name that may be a repository on a hub."""
_DATA_FILE: Final = (".jsonl", ".json", ".parquet", ".arrow", ".csv", ".txt")
"""Endings of data files."""
_ROOT_VARIABLE: Final = "TRINITY_CHECKPOINT_ROOT_DIR"
"""Environment variable with the parent folder of experiments."""
_PathField: TypeAlias = tuple[FieldPath, Any, Any]
"""The field of a path, the mapping or list containing the text, and the key or index there."""


def absolute_paths(
    tree: dict[str, Any], *, cwd: Path, environ: Mapping[str, str], exists: Callable[[str], bool] = os.path.exists
) -> None:
    """Makes the checkpoint root and every field declared as `LocalPath` absolute in `tree`.

    `owner/name` is a name on a hub unless a file or folder of that name exists below `cwd`; a URL is unchanged.
    """
    root = tree.get("checkpoint_root_dir")
    if root is None or root == "":
        root = environ.get(_ROOT_VARIABLE) or "./checkpoints"
    if isinstance(root, str):
        tree["checkpoint_root_dir"] = _join(cwd, root)
    for _, node, key in _paths(Experiment, tree, ()):
        node[key] = _absolute(node[key], cwd, exists)


def change_paths(config: dict[str, Any], change: Callable[[str], str]) -> None:
    """Rewrites every field declared as `LocalPath` in a valid config."""
    for _, node, key in _paths(Experiment, config, ()):
        node[key] = change(node[key])


def named_paths(tree: dict[str, Any]) -> Iterator[_PathField]:
    """Yields every text declared as `LocalPath`: the field, the container, and the key or index in the container."""
    return _paths(Experiment, tree, ())


def relative_paths(tree: dict[str, Any]) -> list[Issue]:
    """Returns an issue for each path in `tree` relative to the sender's folder, unknown to the daemon."""
    return [
        Issue(path, f"{value!r} is relative, and the daemon does not know to which folder", "give an absolute path")
        for path, value in _written_paths(tree)
        # A possible name of a model or dataset on a hub is accepted as a name; a gap is reported as a gap alone.
        if isinstance(value, str)
        and value != GAP
        and not value.startswith("/")
        and _absolute(value, Path("/"), exists=lambda _: False) != value
    ]


def _written_paths(tree: dict[str, Any]) -> Iterator[tuple[FieldPath, object]]:
    """Yields the field and the text of every file path written in a tree."""
    root = tree.get("checkpoint_root_dir")
    if root:
        yield ("checkpoint_root_dir",), root
    for path, holder, key in _paths(Experiment, tree, ()):
        yield path, holder[key]


def _paths(kind: type[Section], node: Any, at: FieldPath) -> Iterator[_PathField]:
    """Yields the paths below a section: field, container, and key or index; values are unchecked."""
    for name, field in kind.model_fields.items() if isinstance(node, dict) else ():
        value = node.get(name)
        # The tree is not validated yet: any value may have any type.
        mark = next((metadatum for metadatum in field.metadata if isinstance(metadatum, LocalPath)), None)
        if mark is not None:
            yield from _texts_of(node, name, mark, at)
        else:
            yield from _paths_below(field.annotation, value, (*at, name))


def _texts_of(node: dict[str, Any], name: str, mark: LocalPath, at: FieldPath) -> Iterator[_PathField]:
    """Yields the non-empty texts of a path field: the value, the elements of a list, or arguments."""
    value = node.get(name)
    if mark.arguments:
        arguments: dict[str, Any] = value if isinstance(value, dict) else {}
        for argument in mark.arguments:
            if isinstance(arguments.get(argument), str) and arguments[argument]:
                yield (*at, name, argument), arguments, argument
    elif isinstance(value, list):
        for number, text in enumerate(value):
            if isinstance(text, str) and text:
                yield (*at, name, number), value, number
    elif isinstance(value, str) and value:
        yield (*at, name), node, name


def _paths_below(annotation: Any, node: Any, at: FieldPath) -> Iterator[_PathField]:
    """Yields paths of the sections in a field, directly or in a list or a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield from _paths(annotation, node, at)
        return
    origin = get_origin(annotation)
    # The arguments of a Literal are words, not types; in a mapping, only the type of the values can be a section.
    inner_types = get_args(annotation) if origin is not Literal else ()
    if origin in (list, dict):
        inner_types = inner_types[-1:]
        children = list(enumerate(node)) if isinstance(node, list) else []
        children += list(node.items()) if isinstance(node, dict) else []
        inner = [((*at, key), child_node) for key, child_node in children]
    else:
        inner = [(at, node)]
    for inner_type in inner_types:
        for path, inner_node in inner:
            yield from _paths_below(inner_type, inner_node, path)


def _absolute(text: str, cwd: Path, exists: Callable[[str], bool]) -> str:
    """Returns the absolute form of a path; a URL, a text with NUL, or a name on a hub without a file or folder here, is
    unchanged.
    """
    # A NUL would raise ValueError in every system call: check_plain reports the field.
    if "://" in text or "\0" in text:
        return text
    on_hub = _HUB_NAME.fullmatch(text) is not None or HubId.parse(text) is not None
    ambiguous = on_hub and not text.endswith(_DATA_FILE)
    if ambiguous and not exists(_join(cwd, text)):
        return text
    return _join(cwd, text)


def _join(cwd: Path, text: str) -> str:
    """Returns a path made absolute below `cwd`; a URL, or a text with NUL, is unchanged."""
    if "\0" in text or "://" in text:
        return text
    return absolute_path(text, below=cwd)
