"""The only locations allowed for an experiment's own files: a record naming another location is rejected.

Anyone with write access to a topic of the log may name any path in an event. Every such path read, loaded, exported,
renamed or removed by workers or the daemon must lie where the experiment's specification puts it, symbolic links
resolved.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rftd.ops.errors import DataError, WorkError
from rftd.storage.files.shared_memory import shared_folder
from rftd.storage.files.unreferenced import stage_folders
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.weights import WeightsPublished
from rftd.streams.spec.spec import ExperimentSpec

DURABLE: Final = "checkpoint"
"""The weight channel of files in the job's folder, the fallback of every other channel."""
_MEMORY: Final = "memory"
"""Weight channel of files in memory."""
_CHECKPOINT: Final = re.compile(r"global_step_[0-9]{1,18}")
"""Form of a checkpoint folder's name."""
_VERSION: Final = re.compile(r"v[0-9]+-g[0-9]+[A-Za-z0-9.-]*")
"""Form of a weight version's folder name."""
_SHOWN_CHARS: Final = 200
"""Maximum characters of a foreign path in an error."""


def checkpoint_folder(spec: ExperimentSpec, event: CheckpointCommitted) -> Path:
    """Returns the folder of a committed checkpoint. Raises DataError for a foreign location or an unknown stage."""
    if not 0 <= event.stage < len(spec.stages):
        raise DataError(f"checkpoint.committed names stage {event.stage}, which the experiment does not have")
    if not is_own_checkpoint(spec, event.path):
        raise DataError(
            "checkpoint.committed names a place that is not the experiment's",
            where=event.path[:_SHOWN_CHARS],
            fix="see who may write on rftd.checkpoints; what a trainer saves lies in the job's folder",
        )
    return Path(event.path)


def is_own_checkpoint(spec: ExperimentSpec, path: str) -> bool:
    """True if a trainer of the experiment may have saved a checkpoint at the path. Blocks."""
    return _lies_in(path, stage_folders(spec), _CHECKPOINT)


def check_weights(spec: ExperimentSpec, event: WeightsPublished) -> None:
    """Raises WorkError unless the weights were published at a location and by a channel of the experiment. Blocks."""
    if not is_own_weights(spec, event):
        raise WorkError(
            f"weights.published names a place that is not the experiment's, by the channel {event.method[:40]!r}",
            where=event.path[:_SHOWN_CHARS],
            fix="see who may write on rftd.weights; the trainer publishes its newest version again",
        )


def is_own_weights(spec: ExperimentSpec, event: WeightsPublished) -> bool:
    """True if the weights were published at a location and by a channel of the experiment's specification. Blocks."""
    if event.method not in {DURABLE, *(stage.synchronizer.sync_method for stage in spec.stages)}:
        return False
    folders = {Path(spec.job_dir) / "weights"}
    if event.method == _MEMORY:
        folders |= {shared_folder(spec.job_dir, stage.synchronizer.memory_dir) for stage in spec.stages}
    # The path of any other channel is not a file path: an address or a name, meaningful to the channel only.
    return event.method not in (DURABLE, _MEMORY) or _lies_in(event.path, folders, _VERSION)


def _lies_in(path: str, folders: Iterable[Path], name: re.Pattern[str]) -> bool:
    """True if the path, links resolved, lies directly in a given folder with a matching name."""
    if "\0" in path or not name.fullmatch(os.path.basename(path)):
        return False
    parent, resolved_name = os.path.split(os.path.realpath(path))
    return resolved_name == os.path.basename(path) and parent in {os.path.realpath(folder) for folder in folders}
