"""Trainers stopped or killed at any operation on files: nothing is lost or done twice, all that is named is there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest


@pytest.mark.e2e
@pytest.mark.slow
def test_trainer_killed_within_file_operations_leaves_its_successor_unchanged(
    tmp_path: Path, chance: random.Random
) -> None:
    from synthetic.daemon.scene import Scene
    from synthetic.deaths.zombie_trainers import LOST_AFTER, Zombies

    scene = Scene(tmp_path, *LOST_AFTER)
    with scene.host:
        log = ("--log", f"unix:{scene.data.socket}")
        counts = Zombies(scene, chance, log, asleep_s=(3.0, 6.0)).series(3, per_run=3)
    assert counts.broken == []
    assert counts.stopped + counts.killed + counts.spared == 3
    assert counts.weights
    assert counts.checkpoints
