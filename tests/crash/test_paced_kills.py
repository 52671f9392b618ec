"""Kills at any moment of runs that use experiences again, and of those whose sides wait for one another."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.task import TaskLeased

if TYPE_CHECKING:
    from scene import Scene

SHORT = ("stages=[]", "buffer.total_steps=16", "explorer.eval_interval=1000", "trainer.engine_args.step_s=0.03")


@pytest.mark.e2e
@pytest.mark.slow
def test_every_pace_survives_kills(embedded_scene: Scene, chance: random.Random) -> None:
    """A kill or two each; the promises of rest, of uses and of windows are among those that `verify` knows."""
    from killing import PACES, UNBOUNDED, killed_series

    overrides = [(*SHORT, *UNBOUNDED, *PACES[name]) for name in ("explorer_driven", "trainer_driven", "fixed")]
    counts = killed_series(embedded_scene, chance, 5, moments=2, overrides=overrides)
    assert counts.broken == [] and counts.lost == []
    assert counts.experiments >= 3 and sum(counts.kills.values()) >= 5
    uses = Counter(item.use for plan in embedded_scene.events(BatchPlanned) for item in plan.experiences)
    assert uses[2], "nothing was used again"
    assert any(lease.window > 0 for lease in embedded_scene.events(TaskLeased)), "nobody came to a sync point"
