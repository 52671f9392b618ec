"""`absolute_paths` makes relative paths absolute on the client; the daemon has another working directory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import LocalPath, Section
from rftd.ops.paths import absolute_path

# `Qwen/Qwen3-0.6B` is a repository on a hub, and might be a folder as well: only the disk tells.
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_DATA_FILE: Final = (".jsonl", ".json", ".parquet", ".csv", ".txt")
_ROOT_VARIABLE: Final = "TRINITY_CHECKPOINT_ROOT_DIR"


def absolute_paths(
    tree: dict[str, Any], *, cwd: Path, environ: Mapping[str, str], exists: Callable[[str], bool] = os.path.exists
) -> None:
    """Rewrites in `tree` the checkpoint root and every field that the schema declares as a `LocalPath`.

    `owner/name` is a name on a hub unless something of that name exists below `cwd`; a URL stays as it is.
    """
    root = tree.get("checkpoint_root_dir")
    if root is None or root == "":
        root = environ.get(_ROOT_VARIABLE) or "./checkpoints"
    if isinstance(root, str):
        tree["checkpoint_root_dir"] = _join(cwd, root)
    for node, key in _paths(Experiment, tree):
        node[key] = _absolute(node[key], cwd, exists)


def _paths(kind: type[Section], node: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """The paths that are given below a section, each as the mapping that holds it and its key; values are unchecked."""
    for name, field in kind.model_fields.items() if isinstance(node, dict) else ():
        value = node.get(name)
        # The tree is not validated yet: any value may have any type.
        mark = next((each for each in field.metadata if isinstance(each, LocalPath)), None)
        if mark is not None:
            holder, key = (value, mark.argument) if mark.argument else (node, name)
            if isinstance(holder, dict) and isinstance(holder.get(key), str) and holder[key]:
                yield holder, key
        else:
            yield from _paths_below(field.annotation, value)


def _paths_below(annotation: Any, value: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Paths of the sections that a field may hold, by itself or in a list or a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield from _paths(annotation, value)
        return
    origin = get_origin(annotation)
    # The arguments of a Literal are words, no types; of a mapping only the values' type can hold a section.
    parts = get_args(annotation) if origin is not Literal else ()
    if origin in (list, dict):
        parts = parts[-1:]
        held = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    else:
        held = [value]
    for part in parts:
        for each in held:
            yield from _paths_below(part, each)


def _absolute(text: str, cwd: Path, exists: Callable[[str], bool]) -> str:
    # A NUL would make every call of the operating system raise ValueError: check_plain reports it with its field.
    if "://" in text or "\0" in text:
        return text
    ambiguous = _HUB_ID.fullmatch(text) is not None and not text.endswith(_DATA_FILE)
    if ambiguous and not exists(_join(cwd, text)):
        return text
    return _join(cwd, text)


def _join(cwd: Path, text: str) -> str:
    if "\0" in text or "://" in text:
        return text
    return absolute_path(text, below=cwd)
