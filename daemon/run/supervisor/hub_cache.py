"""`HubCache`: models and datasets of the Hugging Face hub fetched by the daemon's user."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from rftd.daemon.config.client_side import named_paths
from rftd.daemon.config.field_path import FieldPath
from rftd.ops.errors import DataError
from rftd.ops.hub_id import DATASET, MODEL, HubId

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
"""Form of a commit's name."""
_REF_SIZE_BYTES: Final = 100
"""Maximum size in bytes of a file naming the commit of a revision."""
_INDEX: Final = "model.safetensors.index.json"
"""File listing the parts of a model's weights."""
_UNUSED_FILES: Final = (
    *("*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.ot", "*.tflite"),
    *("README.md", "LICENSE*", ".git*"),
)
"""Glob patterns of a model's files that rftd never uses."""
_SERVICE_ENGINES: Final = ("tinker", "external")
"""Engines with models provided and named by a service."""


class HubName(NamedTuple):
    """A name on the hub found in a configuration."""

    id: HubId
    """Name and revision on the hub."""
    kind: str
    """`MODEL` or `DATASET`."""
    field: FieldPath
    """Path of the field in the file."""
    holder: Any
    """The mapping or list containing the name."""
    key: Any
    """Key or index of the name in `holder`."""


class HubCache:
    """A cache folder in `huggingface_hub`'s layout: each snapshot is a folder of links to the files of one commit."""

    def __init__(self, root: Path) -> None:
        """`root` is the cache folder of `huggingface_hub`."""
        self.root = root
        """Cache folder of `huggingface_hub`."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """Returns the cache filled by `hf download` in this environment."""
        usual = environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
        home = environ.get("HF_HOME") or os.path.join(usual, "huggingface")
        return cls(Path(environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")).absolute())

    def snapshot(self, id: HubId, kind: str) -> Path | None:
        """Returns the folder of a model or dataset at its revision; None if not in the cache."""
        folder = self.root / f"{kind}s--{id.owner}--{id.name}"
        commit = id.revision if _COMMIT.fullmatch(id.revision) else _commit(folder / "refs" / id.revision)
        snapshot = folder / "snapshots" / commit
        return snapshot if commit and snapshot.is_dir() else None


def with_snapshots(config: dict[str, Any], cache: HubCache) -> dict[str, Any]:
    """Returns the configuration with each cached hub name replaced by the folder of its snapshot.

    Names not in the cache stay, and are refused later, when their folder does not exist.
    """
    changed = copy.deepcopy(config)
    for name in hub_names(changed):
        snapshot = cache.snapshot(name.id, name.kind)
        if snapshot is not None:
            name.holder[name.key] = str(snapshot)
    return changed


def hub_names(config: dict[str, Any]) -> Iterator[HubName]:
    """Yields the names of models and datasets to be looked up in the cache; models of a service are skipped."""
    for path, holder, key in named_paths(config):
        id = HubId.parse(holder[key])
        kind = MODEL if "model" in str(key) or "lora" in str(path) else DATASET
        if id is None or str(path[-2]).endswith("_args") or (kind == MODEL and _is_elsewhere(config, path)):
            continue
        yield HubName(id, kind, path, holder, key)


def check_whole(folder: Path, kind: str) -> None:
    """Raises DataError if the snapshot lacks a file of its commit, or a model a part of its weights."""
    # A model's files lie directly in its folder; a user's own folder may contain a whole disk below.
    paths = folder.iterdir() if kind == MODEL else folder.rglob("*")
    dangling = (link for link in paths if link.is_symlink() and not link.exists())
    lacking = {str(link.relative_to(folder)) for link in dangling}
    if kind == MODEL:
        # Of a dataset a user may have fetched only one subset; the dataset's own files tell.
        of_model = {name for name in read_files(folder, kind) if "/" not in name} | _files_of_index(folder / _INDEX)
        lacking |= {name for name in of_model if not (folder / name).is_file()}
    if lacking:
        raise DataError(
            f"the {kind} is not whole: {min(lacking)} is not there"
            + (f", nor are {len(lacking) - 1} more files" if len(lacking) > 1 else ""),
            where=str(folder),
            fix="fetch it again: hf download continues where it stopped",
        )


def read_files(snapshot: Path, kind: str) -> set[str]:
    """Returns the names of a commit's files used by rftd, from the list kept next to the snapshot; empty without a
    list.
    """
    try:
        listed = json.loads((snapshot.parent.parent / "trees" / f"{snapshot.name}.json").read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()
    names = listed if snapshot.parent.name == "snapshots" and isinstance(listed, dict) else ()
    return {name for name in names if not any(fnmatch(name, pattern) for pattern in unread_files(kind))}


def unread_files(kind: str) -> tuple[str, ...]:
    """Returns glob patterns of files never used, such as weights in other formats, to be left out of downloads."""
    return _UNUSED_FILES if kind == MODEL else ()


def _commit(ref: Path) -> str:
    """Returns the commit of a named revision; empty if none exists."""
    try:
        with ref.open("rb") as file:
            text = file.read(_REF_SIZE_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""
    return text if _COMMIT.fullmatch(text) else ""


def _files_of_index(index: Path) -> set[str]:
    """Returns the names of the files listed in the index of a model's weights; empty without a readable index."""
    try:
        weights = json.loads(index.read_bytes()).get("weight_map")
    except (OSError, ValueError, AttributeError, RecursionError):
        return set()
    return {name for name in weights.values() if isinstance(name, str)} if isinstance(weights, dict) else set()


def _is_elsewhere(config: Mapping[str, Any], path: FieldPath) -> bool:
    """True if a service provides the model named by this field, so that no files are needed here."""
    section: Any = config
    for key in path[:-1]:
        section = section[key]
        if isinstance(section, dict) and section.get("engine_type") in _SERVICE_ENGINES:
            return True
    return "auxiliary_models" not in path and _is_served(config)


def _is_served(node: Any) -> bool:
    """True if a file, or one of its stages, trains or samples its model through a service."""
    if not isinstance(node, dict):
        return False
    sections = {name: node[name] for name in ("model", "trainer", "explorer") if isinstance(node.get(name), dict)}
    model = sections.get("model", {})
    if any(isinstance(model.get(name), dict) and model[name].get("enable") for name in ("tinker", "external_model")):
        return True
    rollout = sections.get("explorer", {}).get("rollout_model")
    if isinstance(rollout, dict) and rollout.get("engine_type") in _SERVICE_ENGINES:
        return True
    stages = node.get("stages")
    of_stages = any(_is_served(stage) for stage in stages) if isinstance(stages, list) else False
    return sections.get("trainer", {}).get("trainer_type") in _SERVICE_ENGINES or of_stages
