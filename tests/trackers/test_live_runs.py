"""A live run with all trackers at once, which are killed: their readers find what `rftd steps` shows."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Final

import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.tracking import mlflow_runs, swanlab_files, trackio_runs, wandb_files
from synthetic.tracking.live import said_by_steps, trackers_of
from synthetic.tracking.tracked import Shown, shown_by
from synthetic.until import poll

from rftd.workers.tracking.cursor import CursorFile
from rftd.workers.tracking.point import ROLES

for package in ("wandb", "mlflow", "swanlab", "trackio"):
    pytest.importorskip(package)
KINDS: Final = ("wandb", "mlflow", "swanlab", "trackio", "tensorboard", "jsonl")


@pytest.fixture(autouse=True)
def fresh_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """trackio's reader, which takes the folder of its database from the environment when it is imported."""
    for module in [module for module in sys.modules if module.partition(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))


def of_one_run(figures: list[Shown]) -> list[Shown]:
    """The figures without their run, each once: the explorer's are the trainer's too."""
    return sorted({figure._replace(run="") for figure in figures})


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(1500)  # six trackers, whose packages take seconds to import after each kill
@pytest.mark.parametrize("single_run", [False, True])
def test_all_trackers_of_a_live_run_survive_kills(uri: str, tmp_path: Path, single_run: bool) -> None:
    scene = Scene(tmp_path, environ={"WANDB_MODE": "offline", "TRACKIO_DIR": str(tmp_path / "trackio")})
    chance = random.Random(3)
    first, *others = KINDS
    monitor = (
        f"{{monitor_type: {first}, also: [{', '.join(others)}], single_run: {str(single_run).lower()}, samples: 2, "
        f"sample_interval: 10, monitor_args: {{uri: '{uri}', mode: offline}}}}"
    )
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
        for kind in KINDS:
            poll(
                lambda kind=kind: CursorFile(job, kind, id[:8]).read().ended,
                told=lambda kind=kind: (job / "log" / f"tracker_{kind}.log").read_text(),
            )
        said = {kind: said_by_steps(scene, name, kind) for kind in KINDS}
    assert kills > 5
    monitored = job / "monitor"
    shown = {
        "wandb": wandb_files.shown_in(monitored / "wandb"),
        "mlflow": mlflow_runs.shown_at(uri, id),
        "swanlab": swanlab_files.shown_in(monitored / "swanlab"),
        "trackio": trackio_runs.shown_in("crash", name, id, ("",) if single_run else ROLES),
        **{kind: shown_by(kind, monitored / kind) for kind in ("tensorboard", "jsonl")},
    }
    for kind in KINDS:
        if single_run:
            assert len(shown[kind]) == len(of_one_run(shown[kind])), f"{kind} has no figure twice"
            assert of_one_run(shown[kind]) == of_one_run(said[kind]), kind
        else:
            assert shown[kind] == said[kind], kind
