"""The sight of a rank: releases, third parties' parts, the model's files. Ranks that see different things are named."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import xxhash

from rftd.ops.errors import RankError
from rftd.ops.releases import release_of
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.training.extensions import extensions_of

_PACKAGES: Final = ("rftd", "torch", "transformers", "safetensors", "numpy", "verl")
_WHOLE_BYTES: Final = 16 << 20
"""Files up to this size are read whole."""
_ENDS_BYTES: Final = 1 << 20
"""The bytes that are read at either end of larger ones: a safetensors file has its names and shapes first."""


JOB_FOLDER: Final = "the job's folder"
"""The name of what is compared with the trainer process's own."""
OWN_FOLDER: Final = "that of the trainer process"


def seen(experiment: ExperimentSpec, model_path: str, left_in_job: str = "") -> dict[str, str]:
    """The things by name, as texts that are equal where the things are. Missing files are no error here.

    `left_in_job`: a file that is there if this is the job's folder of the trainer process too.
    """
    found = {name: release_of(name) for name in _PACKAGES}
    found["python"] = platform.python_version()
    found |= extensions_of(experiment)
    if left_in_job:
        found[JOB_FOLDER] = OWN_FOLDER if Path(left_in_job).is_file() else "another one"
    folder = Path(model_path)
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    return found | {f"file {path.name} of the model": _digest(path) for path in files}


def check_alike(seen_by: Sequence[Mapping[str, str]], *, what: str = "see different things") -> None:
    """Raises RankError, naming all differences from rank 0, unless all ranks see the same."""
    differences = []
    first = seen_by[0]
    for rank, other in enumerate(seen_by):
        for name in sorted(first.keys() | other.keys()):
            here = first.get(name, "missing")
            there = other.get(name, "missing")
            if here != there:
                differences.append(f"{name} is {here} on rank 0, and {there} on rank {rank}")
    if differences:
        raise RankError(
            f"the ranks {what}: {'; '.join(differences[:8])}",
            fix="give all ranks the same installation and the same folders",
        )


def check_job_folder(seen_by: Sequence[Mapping[str, str]], job_dir: str) -> None:
    """Raises RankError, naming them, if there are ranks that see another job's folder than the trainer process does."""
    others = [str(rank) for rank, each in enumerate(seen_by) if each.get(JOB_FOLDER, OWN_FOLDER) != OWN_FOLDER]
    if others:
        raise RankError(
            f"rank {', '.join(others)} of {len(seen_by)} sees another folder under the job's path than the trainer "
            "process: its parts of checkpoints would not be found",
            where=job_dir,
            field="checkpoint_root_dir",
            fix="name a folder that all nodes share",
        )


def _digest(path: Path) -> str:
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        data = file.read(_WHOLE_BYTES if size_bytes <= _WHOLE_BYTES else _ENDS_BYTES)
        if size_bytes > _WHOLE_BYTES:
            file.seek(-_ENDS_BYTES, 2)
            data += file.read()
    return f"{size_bytes} bytes, xxh3 {xxhash.xxh3_64(data).hexdigest()}"
