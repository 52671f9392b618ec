"""A synthetic run whose checkpoints are files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from synthetic.log.synthetic_run import SyntheticRun

from rftd.streams.events.checkpoint import CheckpointCommitted, FileRef

CONTENT: Final = bytes(range(256)) * 9000
"""The weights: more than two blocks of a download."""
NAME: Final = "actor/model.safetensors"


class SavedRun(SyntheticRun):
    """A run whose checkpoints lie on the disk."""

    def commit(self, *, stage: int, final: bool, **changes: Any) -> None:
        """A checkpoint of the newest version."""
        folder = self.folder
        (folder / "actor").mkdir(parents=True, exist_ok=True)
        (folder / NAME).write_bytes(CONTENT)
        (folder / "empty").write_bytes(b"")
        refs = tuple(
            FileRef(name, len(content), hashlib.sha256(content).hexdigest())
            for name, content in ((NAME, CONTENT), ("empty", b""))
        )
        event = CheckpointCommitted(
            **{
                "step": self.version,
                "generation": 0,
                "stage": stage,
                "stage_step": self.version,
                "path": str(folder),
                "files": refs,
                "size_bytes": len(CONTENT),
                "checksum": f"c{self.version}.0",
                "sha256": "s" * 64,
                "final": final,
                **changes,
            }
        )
        self.recorder.write(event, self.id, role="trainer")

    @property
    def folder(self) -> Path:
        """The folder of the newest version's checkpoint."""
        return Path(self.job_dir) / f"global_step_{self.version}"
