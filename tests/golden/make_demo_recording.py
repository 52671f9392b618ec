"""Makes `daemon/demo/recorded.rftd.xz`, shown by `rftd page --demo`: an export of a short demo without checkpoints.

The run trains, so each recording is another one: make it anew after a change of events, and look at it.
"""

from __future__ import annotations

import lzma
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from rftd.daemon.demo.recording import RECORDED_FOLDER, RECORDING

MOST_BYTES: Final = 600_000
FIELDS: Final = (
    "buffer.batch_size=12",
    "buffer.total_steps=48",
    "explorer.eval_interval=16",
    "algorithm.optimizer.lr=1.5e-3",
    "stages[0].buffer.total_steps=320",
    "stages[0].trainer.save_interval=320",
    "trainer.save_interval=24",
)


def main() -> None:
    """Runs the demo, and writes the recording; fails if it is too large."""
    rftd = [sys.executable, "-P", "-m", "rftd.daemon"]
    shutil.rmtree(RECORDED_FOLDER, ignore_errors=True)
    fields = [word for field in FIELDS for word in ("-s", field)]
    subprocess.run([*rftd, "demo", "--folder", str(RECORDED_FOLDER), "--bar", "-1", *fields], check=True)
    fresh = Path(RECORDED_FOLDER) / "recorded.rftd"
    data = str(Path(RECORDED_FOLDER) / "data")
    subprocess.run([*rftd, "--data", data, "export", "sums", "--to", str(fresh), "--checkpoints", "none"], check=True)
    body = lzma.compress(fresh.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
    if len(body) > MOST_BYTES:
        raise SystemExit(f"{len(body)} bytes are too many: shorten the run")
    RECORDING.write_bytes(body)
    shutil.rmtree(RECORDED_FOLDER)


if __name__ == "__main__":
    main()
