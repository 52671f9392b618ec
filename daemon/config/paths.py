"""Relative paths made absolute on the client; the daemon has another working directory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath
from rftd.ops.paths import absolute_path

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_DATA_FILE: Final = (".jsonl", ".json", ".parquet", ".csv", ".txt")
_DATASETS: Final = ("taskset", "experience_buffer")
_LISTS: Final = ("tasksets", "eval_tasksets", "auxiliary_buffers")
_ROOT_VARIABLE: Final = "TRINITY_CHECKPOINT_ROOT_DIR"


def absolute_paths(
    tree: dict[str, Any], *, cwd: Path, environ: Mapping[str, str], exists: Callable[[str], bool] = os.path.exists
) -> None:
    """Rewrites the checkpoint root, the model and every dataset path in `tree`.

    `owner/name` is a name on a hub unless something of that name exists below `cwd`; a URL stays as it is.
    """
    root = tree.get("checkpoint_root_dir")
    if root is None or root == "":
        root = environ.get(_ROOT_VARIABLE) or "./checkpoints"
    if isinstance(root, str):
        tree["checkpoint_root_dir"] = _join(cwd, root)
    model = tree.get("model")
    if isinstance(model, dict):
        for key in ("model_path", "critic_model_path", "chat_template_path"):
            if isinstance(model.get(key), str) and model[key]:
                model[key] = _absolute(model[key], cwd, exists)
    for section, entries, key in (("model", "lora_configs", "path"), ("explorer", "auxiliary_models", "model_path")):
        found = _at(tree, section, entries)
        for entry in found if isinstance(found, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get(key), str) and entry[key]:
                entry[key] = _absolute(entry[key], cwd, exists)
    _walk(tree, (), cwd, exists)


def _at(tree: dict[str, Any], section: str, key: str) -> Any:
    found = tree.get(section)
    return found.get(key) if isinstance(found, dict) else None


def _walk(node: Any, path: FieldPath, cwd: Path, exists: Callable[[str], bool]) -> None:
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(pairs):
        dataset = path[-1:] and (path[-1] in _DATASETS or (path[-2:-1] and path[-2] in _LISTS))
        if key == "path" and isinstance(value, str) and value and dataset:
            node[key] = _absolute(value, cwd, exists)
        elif isinstance(value, dict | list):
            _walk(value, (*path, key), cwd, exists)


def _absolute(text: str, cwd: Path, exists: Callable[[str], bool]) -> str:
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
