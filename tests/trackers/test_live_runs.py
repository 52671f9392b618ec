"""A live run with all trackers at once, which are killed: their readers find what `rftd steps` shows."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.tracking import mlflow_runs, wandb_files
from synthetic.tracking.live import said_by_steps, trackers_of
from synthetic.tracking.tracked import shown_by
from synthetic.until import poll

from rftd.workers.tracking.cursor import CursorFile

pytest.importorskip("wandb")
pytest.importorskip("mlflow")


@pytest.mark.e2e
@pytest.mark.slow
def test_all_trackers_of_a_live_run_survive_kills(uri: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path, environ={"WANDB_MODE": "offline"})
    chance = random.Random(3)
    monitor = f"{{monitor_type: wandb, also: [mlflow, tensorboard, jsonl], monitor_args: {{uri: '{uri}'}}}}"
    with scene.host:
        name = scene.submit(EXPERIMENT, f"monitor={monitor}", "trainer.engine_args.step_s=0.5")
        id = scene.until_step(name, 1).experiment.summary.id
        kills = 0
        page = scene.page(name)
        while page is None or page.experiment.summary.state == "running":
            time.sleep(chance.uniform(1.0, 4.0))
            living = trackers_of(id)
            if living and kills < 20:
                chance.choice(living).kill()
                kills += 1
            page = scene.page(name)
        job = tmp_path / "checkpoints" / "crash" / "sums"
        for kind in ("wandb", "mlflow", "tensorboard", "jsonl"):
            poll(
                lambda kind=kind: CursorFile(job, kind, id[:8]).read().ended,
                told=lambda kind=kind: (job / "log" / f"tracker_{kind}.log").read_text(),
            )
        said = {kind: said_by_steps(scene, name, kind) for kind in ("wandb", "tensorboard", "jsonl", "mlflow")}
    assert kills > 5
    assert mlflow_runs.shown_at(uri, id) == said["mlflow"]
    assert wandb_files.shown_in(job / "monitor" / "wandb") == said["wandb"]
    for kind in ("tensorboard", "jsonl"):
        assert shown_by(kind, job / "monitor" / kind) == said[kind]
