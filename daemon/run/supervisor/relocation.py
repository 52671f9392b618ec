"""The file of an imported experiment, with its paths where the import moved their folders.

The record of an import tells the moved folders, and `spec.config` stays as it was written. Whatever is made of that
file here, a fork, a bench, a continuation or the other half, would go to the old folders without these functions.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from rftd.daemon.config.client_side import change_paths
from rftd.daemon.run.registry import Entry
from rftd.streams.events.experiment import FolderMove
from rftd.streams.folds.spine import Spine
from rftd.streams.portable.folders import Folders
from rftd.streams.spec.spec import ExperimentSpec

Moves: TypeAlias = "tuple[tuple[FolderMove, ...], ...]"
"""The folders that each import moved, the first import's first."""


def relocated(spec: ExperimentSpec, spine: Spine) -> ExperimentSpec:
    """A specification whose file names the folders of `spine`'s experiment as they are after its imports."""
    if not spine.moves:
        return spec
    config = _moved(spec.config, spine.moves)
    if (half := spine.late_half) is not None:
        config = _with_half(spec.config, config, half.config, _moved(half.config, half.moves))
    config["checkpoint_root_dir"] = _root_of(spine)
    return msgspec.structs.replace(spec, config=config)


def imported_from(spec: ExperimentSpec, entries: Iterable[Entry]) -> Entry | None:
    """The newest imported experiment whose job folder was the specification's before the import; None without one."""
    imported: Entry | None = None
    for entry in entries:
        if entry.job_dir == spec.job_dir:  # the folder is in use under its old name
            return None
        if entry.spine.moves and _here(spec.job_dir, entry.spine.moves) == entry.job_dir:
            imported = entry
    return imported


def _moved(config: dict[str, Any], moves: Moves) -> dict[str, Any]:
    """A copy of the file with its paths as they are after these imports."""
    config = copy.deepcopy(config)
    change_paths(config, lambda path: _here(path, moves))
    return config


def _with_half(written: Any, here: Any, half_written: Any, half_here: Any) -> Any:
    """The document `here`, with the value of `half_here` wherever `written` and `half_written` agree."""
    if isinstance(written, dict) and isinstance(half_written, dict):
        return {
            key: _with_half(value, here[key], half_written[key], half_here[key]) if key in half_written else here[key]
            for key, value in written.items()
        }
    if isinstance(written, list) and isinstance(half_written, list) and len(written) == len(half_written):
        return [_with_half(*values) for values in zip(written, here, half_written, half_here, strict=True)]
    return half_here if written == half_written else here


def _here(path: str, moves: Moves) -> str:
    for step in moves:
        path = Folders((move.old, move.new) for move in step).path(path)
    return path


def _root_of(spine: Spine) -> str:
    """The checkpoint root below which the job folder lies now; an import may have given that folder another name."""
    spec = spine.spec
    assert spec is not None
    below = os.path.join("", *(name for name in (spec.project, spec.group, spec.name) if name))
    if spec.job_dir.endswith(f"/{below}"):
        return spec.job_dir.removesuffix(f"/{below}") or "/"
    return os.path.dirname(spec.job_dir)
