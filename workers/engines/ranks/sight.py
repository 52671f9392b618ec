"""The releases, third-party parts and model files seen by a rank, to be compared among ranks."""

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
"""Maximum size of files that are digested completely."""
_ENDS_BYTES: Final = 1 << 20
"""Bytes digested at either end of larger files: a safetensors file begins with its names and shapes."""


JOB_FOLDER: Final = "the job's folder"
"""Name of the fact compared with the trainer process's own folder."""
OWN_FOLDER: Final = "that of the trainer process"


def seen(experiment: ExperimentSpec, model_path: str, left_in_job: str = "") -> dict[str, str]:
    """Returns this rank's facts as texts, by name: releases, third-party parts, digests of the model's files. Missing
    files are allowed.

    `left_in_job` is a file created by the trainer process, visible here only if both see the same job folder.
    """
    facts = {name: release_of(name) for name in _PACKAGES}
    facts["python"] = platform.python_version()
    facts |= extensions_of(experiment)
    if left_in_job:
        facts[JOB_FOLDER] = OWN_FOLDER if Path(left_in_job).is_file() else "another one"
    folder = Path(model_path)
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    return facts | {f"file {path.name} of the model": _digest(path) for path in files}


def check_alike(seen_by: Sequence[Mapping[str, str]], *, difference: str = "see different things") -> None:
    """Raises RankError, naming all differences from rank 0, unless all ranks have equal facts."""
    differences = []
    first = seen_by[0]
    for rank, facts in enumerate(seen_by):
        for name in sorted(first.keys() | facts.keys()):
            first_fact = first.get(name, "missing")
            other_fact = facts.get(name, "missing")
            if first_fact != other_fact:
                differences.append(f"{name} is {first_fact} on rank 0, and {other_fact} on rank {rank}")
    if differences:
        raise RankError(
            f"the ranks {difference}: {'; '.join(differences[:8])}",
            fix="give all ranks the same installation and the same folders",
        )


def check_job_folder(seen_by: Sequence[Mapping[str, str]], job_dir: str) -> None:
    """Raises RankError, naming the ranks, if some have a job folder other than the trainer process's."""
    elsewhere = [str(rank) for rank, facts in enumerate(seen_by) if facts.get(JOB_FOLDER, OWN_FOLDER) != OWN_FOLDER]
    if elsewhere:
        raise RankError(
            f"rank {', '.join(elsewhere)} of {len(seen_by)} sees another folder under the job's path than the trainer "
            "process: its parts of checkpoints would not be found",
            where=job_dir,
            field="checkpoint_root_dir",
            fix="name a folder that all nodes share",
        )


def _digest(path: Path) -> str:
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        content = file.read(_WHOLE_BYTES if size_bytes <= _WHOLE_BYTES else _ENDS_BYTES)
        if size_bytes > _WHOLE_BYTES:
            file.seek(-_ENDS_BYTES, 2)
            content += file.read()
    return f"{size_bytes} bytes, xxh3 {xxhash.xxh3_64(content).hexdigest()}"
