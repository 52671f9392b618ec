"""The file of an imported experiment, with its paths after the import moved their folders.

The import's record lists the moved folders, and `spec.config` stays as written. Everything derived from that file here
(a fork, a bench, a continuation, the other half) would go to the old folders without these functions.
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
"""Folder renamings by imports, oldest import first."""


def relocated(spec: ExperimentSpec, spine: Spine) -> ExperimentSpec:
    """Returns the specification with the paths of its file changed to the folders of `spine`'s experiment after its
    imports.
    """
    if not spine.moves:
        return spec
    config = _with_moved_paths(spec.config, spine.moves)
    if (half := spine.late_half) is not None:
        config = _with_half(spec.config, config, half.config, _with_moved_paths(half.config, half.moves))
    config["checkpoint_root_dir"] = _root_of(spine)
    return msgspec.structs.replace(spec, config=config)


def imported_from(spec: ExperimentSpec, experiments: Iterable[Entry]) -> Entry | None:
    """Returns the newest imported experiment whose job folder was `spec`'s before the import; None without one."""
    imported: Entry | None = None
    for experiment in experiments:
        if experiment.job_dir == spec.job_dir:  # the folder is in use under its old name
            return None
        if experiment.spine.moves and _moved_path(spec.job_dir, experiment.spine.moves) == experiment.job_dir:
            imported = experiment
    return imported


def _with_moved_paths(config: dict[str, Any], moves: Moves) -> dict[str, Any]:
    """Returns a copy of a file's configuration with its paths changed by these imports."""
    config = copy.deepcopy(config)
    change_paths(config, lambda path: _moved_path(path, moves))
    return config


def _with_half(document: Any, moved_document: Any, half_document: Any, moved_half: Any) -> Any:
    """Returns `moved_document`, with all parts shared by the files of both halves taken from `moved_half`, the other
    half's file after the import.
    """
    if isinstance(document, dict) and isinstance(half_document, dict):
        return {
            key: _with_half(child, moved_document[key], half_document[key], moved_half[key])
            if key in half_document
            else moved_document[key]
            for key, child in document.items()
        }
    if isinstance(document, list) and isinstance(half_document, list) and len(document) == len(half_document):
        return [
            _with_half(*elements) for elements in zip(document, moved_document, half_document, moved_half, strict=True)
        ]
    return moved_half if document == half_document else moved_document


def _moved_path(path: str, moves: Moves) -> str:
    """Returns the path after these imports, applied oldest first."""
    for step in moves:
        path = Folders((move.old, move.new) for move in step).path(path)
    return path


def _root_of(spine: Spine) -> str:
    """Returns the checkpoint root above the present job folder; an import may have renamed the job folder."""
    spec = spine.spec
    assert spec is not None
    below = os.path.join("", *(name for name in (spec.project, spec.group, spec.name) if name))
    if spec.job_dir.endswith(f"/{below}"):
        return spec.job_dir.removesuffix(f"/{below}") or "/"
    return os.path.dirname(spec.job_dir)
