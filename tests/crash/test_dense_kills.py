"""Kills as dense as a run allows, of every role and of all at once: nothing is lost, all is trained once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from synthetic.daemon.scene import Scene


@pytest.mark.e2e
@pytest.mark.slow
def test_15_dense_kills_lose_nothing(embedded_scene: Scene, chance: random.Random) -> None:
    from synthetic.daemon.scene import EXPERIMENT
    from synthetic.deaths.killing import killed_series

    memory = embedded_scene.folder / "memory"
    text = EXPERIMENT.replace("sync_method: checkpoint", f"sync_method: memory, memory_dir: {memory}")
    counts = killed_series(embedded_scene, chance, 15, moments=15, text=text)
    assert counts.broken == []
    assert counts.lost == []
    assert sum(counts.kills.values()) >= 15
    assert counts.acknowledged > 100
    assert counts.executions > counts.steps, "no trainer died between two checkpoints"


@pytest.mark.e2e
@pytest.mark.slow
def test_a_deterministic_run_killed_12_times_ends_on_the_same_weights(tmp_path: Path, chance: random.Random) -> None:
    from synthetic.daemon.scene import EXPERIMENT, Scene
    from synthetic.deaths.killing import IN_ORDER, Killing, trained

    histories = []
    for kills in (0, 12):
        folder = tmp_path / str(kills)
        folder.mkdir()
        scene = Scene(folder)
        with scene.host:
            killing = Killing(scene, chance, together_p=0.0)
            page = killing.until_ended(scene.submit(EXPERIMENT, "buffer.total_steps=30", *IN_ORDER), kills)
            assert page.experiment.summary.state == "completed", page.experiment.summary
            assert killing.total == kills
            report = scene.verified()
            assert report.clean, report.findings
            histories.append(trained(scene))
    assert len(histories[0]) == 35
    assert all(histories[0])
    assert histories[1] == histories[0]
