"""Backups of a run that writes at full speed; each is put back alone, goes on to its end, and is verified.

Run: python -P tests/bench/backups.py [--copies 10] [--steps 300]
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from synthetic.daemon.scene import EXPERIMENT, Scene

from rftd.daemon.http.client.host import DaemonHost
from rftd.storage.files.backup import FILES

FULL_SPEED: Final = (
    "stages=[]",
    "explorer.eval_interval=50",
    "explorer.rollout_model.extra_engine_args.latency_s=0.0",
    "trainer.engine_args.step_s=0.0",
    "trainer.save_interval=10",
)
FIRST_STEP: Final = 5


def backed_up(scene: Scene, copy: Path) -> float:
    """Makes one backup. Returns the seconds that it took."""
    began_s = time.monotonic()
    made = scene.rftd("--json", "backup", str(copy))
    assert made.status == 0, made
    assert json.loads(made.out)["experiments"], made
    return time.monotonic() - began_s


def put_back(scene: Scene, copy: Path) -> None:
    """Removes all that there is, and puts a backup in its place."""
    shutil.rmtree(scene.data.root)
    shutil.rmtree(scene.folder / "checkpoints")
    shutil.copytree(copy, scene.data.root)
    shutil.copytree(copy / FILES, "/", dirs_exist_ok=True)


def main() -> None:
    """Prints the figures as JSON, and fails if a copy did not go on, or broke a promise."""
    options = read_options(__doc__, copies=10, steps=300)
    findings: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rftd-backups-") as folder:
        scene = Scene(Path(folder))
        copies = [scene.folder / f"copy{number}" for number in range(options.copies)]
        with scene.host:
            name = scene.submit(EXPERIMENT, *FULL_SPEED, f"buffer.total_steps={options.steps}")
            began = scene.until_step(name, FIRST_STEP).experiment.summary.step
            began_s = time.monotonic()
            spent_s: list[float] = []
            steps: list[int] = []
            for copy in copies:
                spent_s.append(backed_up(scene, copy))
                page = scene.page(name)
                assert page is not None
                steps.append(page.experiment.summary.step)
            steps_per_s = (steps[-1] - began) / (time.monotonic() - began_s)
            scene.until_ended(name)
        for copy in copies:
            put_back(scene, copy)
            with DaemonHost(scene.data.root, scene.folder / "daemon.log") as host:
                scene.host = host
                page = scene.until_ended(name)
                if page.experiment.summary.state != "completed" or page.experiment.summary.step != options.steps:
                    findings.append(f"{copy.name}: {page.experiment.summary.state}: {page.experiment.summary.reason}")
            verified = scene.rftd("verify", "--files", "--index")
            if verified.status != 0:
                findings.append(f"{copy.name}: {verified.out}")
    tell(
        {
            "copies": len(copies),
            "made_at_steps": steps,
            "steps": options.steps,
            "steps_per_s": steps_per_s,
            "backup_s": {"median": statistics.median(spent_s), "max": max(spent_s)},
            "findings": findings,
        }
    )
    sys.exit(1 if findings or steps[-1] >= options.steps else 0)


if __name__ == "__main__":
    main()
