"""The folder of weights that all workers of one machine map: below a folder in memory, or in the job's folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import xxhash

MEMORY: Final = "/dev/shm"  # noqa: S108 - the folder made there is this user's alone
"""The folder whose files Linux keeps in memory."""

_PREFIX: Final = "rftd-"


def shared_folder(job_dir: str, asked: str = "", *, memory: str = MEMORY) -> Path:
    """The folder of one experiment's mapped weights: below `asked`, else below `memory` if it can be written to.

    The name follows from the job's folder, so that whoever knows the specification finds it.
    """
    # In a container /dev/shm may be missing or read-only; its size is the caller's business.
    if not asked and not (os.path.isdir(memory) and os.access(memory, os.W_OK | os.X_OK)):
        return Path(job_dir) / "weights"
    # A digest of the absolute path: a name of fixed length, another one for every job folder.
    return Path(asked or memory) / f"{_PREFIX}{xxhash.xxh3_64_hexdigest(os.path.abspath(job_dir).encode())}"
