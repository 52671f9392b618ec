"""The folder of weights mapped by all workers of a machine: in memory, or in the job's folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import xxhash

MEMORY: Final = "/dev/shm"  # noqa: S108 - the folder created there belongs to this user alone
"""The folder whose files Linux keeps in memory."""

_PREFIX: Final = "rftd-"
"""Beginning of the folder's name."""


def shared_folder(job_dir: str, memory_dir: str = "", *, memory: str = MEMORY) -> Path:
    """Returns the folder of an experiment's mapped weights: below `memory_dir`, else below `memory` if writable, else
    in the job's folder.

    The name is derived from the job's folder, and so known to every process with the specification.
    """
    # In a container /dev/shm may be missing or read-only; the caller checks the size.
    if not memory_dir and not (os.path.isdir(memory) and os.access(memory, os.W_OK | os.X_OK)):
        return Path(job_dir) / "weights"
    # A digest of the absolute path: a name of fixed length, different for every job folder.
    return Path(memory_dir or memory) / f"{_PREFIX}{xxhash.xxh3_64_hexdigest(os.path.abspath(job_dir).encode())}"
