"""Facts seen by each rank (releases, third-party plug-ins, model files), compared among the ranks of a trainer."""

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

_COMPARED_PACKAGES: Final = ("rftd", "torch", "transformers", "safetensors", "numpy", "verl")
"""Packages whose releases must be equal on all ranks."""
_MAX_WHOLE_BYTES: Final = 16 << 20
"""Maximum size of files that are digested completely."""
_ENDS_BYTES: Final = 1 << 20
"""Bytes digested at either end of larger files: a safetensors file begins with its names and shapes."""


JOB_FOLDER: Final = "the job's folder"
"""Name of the fact stating whether a rank sees the trainer process's job folder."""
OWN_FOLDER: Final = "that of the trainer process"
"""Value of the fact `JOB_FOLDER` for a rank seeing the trainer process's job folder."""


def facts_of_rank(experiment: ExperimentSpec, model_path: str, left_in_job: str = "") -> dict[str, str]:
    """Returns this rank's facts as texts, by name: releases, third-party plug-ins, digests of the model's files.

    Missing files are allowed. `left_in_job` is the path of a file created by the trainer process, visible only if this
    rank sees the same job folder; empty: not checked.
    """
    facts = {name: release_of(name) for name in _COMPARED_PACKAGES}
    facts["python"] = platform.python_version()
    facts |= extensions_of(experiment)
    if left_in_job:
        facts[JOB_FOLDER] = OWN_FOLDER if Path(left_in_job).is_file() else "another one"
    folder = Path(model_path)
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    return facts | {f"file {path.name} of the model": _file_digest(path) for path in files}


def require_same_facts(facts_by_rank: Sequence[Mapping[str, str]], *, difference: str = "see different things") -> None:
    """Raises RankError unless all ranks have equal facts, naming the first eight differences from rank 0.

    `difference` completes "the ranks …" in the message.
    """
    differences = []
    first = facts_by_rank[0]
    for rank, facts in enumerate(facts_by_rank):
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


def check_job_folder(facts_by_rank: Sequence[Mapping[str, str]], job_dir: str) -> None:
    """Raises RankError, naming the ranks, if ranks see a job folder other than the trainer process's, `job_dir`."""
    elsewhere = [
        str(rank) for rank, facts in enumerate(facts_by_rank) if facts.get(JOB_FOLDER, OWN_FOLDER) != OWN_FOLDER
    ]
    if elsewhere:
        raise RankError(
            f"rank {', '.join(elsewhere)} of {len(facts_by_rank)} sees another folder under the job's path than the "
            "trainer process: its parts of checkpoints would not be found",
            where=job_dir,
            field="checkpoint_root_dir",
            fix="name a folder that all nodes share",
        )


def _file_digest(path: Path) -> str:
    """Returns size and digest of a file as text; of a large file only both ends are digested."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        content = file.read(_MAX_WHOLE_BYTES if size_bytes <= _MAX_WHOLE_BYTES else _ENDS_BYTES)
        if size_bytes > _MAX_WHOLE_BYTES:
            file.seek(-_ENDS_BYTES, 2)
            content += file.read()
    return f"{size_bytes} bytes, xxh3 {xxhash.xxh3_64(content).hexdigest()}"
