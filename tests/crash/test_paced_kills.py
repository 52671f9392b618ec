"""Kills at any moment of runs that use experiences again, and of those whose sides wait for one another."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.task import TaskLeased

if TYPE_CHECKING:
    from synthetic.daemon.scene import Scene

REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
SHORT = ("stages=[]", "buffer.total_steps=16", "explorer.eval_interval=1000", "trainer.engine_args.step_s=0.03")


@pytest.mark.e2e
@pytest.mark.slow
def test_every_pace_survives_kills(embedded_scene: Scene, chance: random.Random) -> None:
    """A kill or two each; the promises of rest, of uses and of windows are among those that `verify` knows."""
    from synthetic.deaths.killing import PACES, UNBOUNDED, killed_series

    overrides = [(*SHORT, *UNBOUNDED, *PACES[name]) for name in ("explorer_driven", "trainer_driven", "fixed")]
    counts = killed_series(embedded_scene, chance, 5, moments=2, overrides=overrides)
    assert counts.broken == []
    assert counts.lost == []
    assert counts.experiments >= 3
    assert sum(counts.kills.values()) >= 5
    uses = Counter(item.use for plan in embedded_scene.events(BatchPlanned) for item in plan.experiences)
    assert uses[2], "nothing was used again"
    assert any(lease.window > 0 for lease in embedded_scene.events(TaskLeased)), "nobody came to a sync point"


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("pair", ["production"], indirect=True)
def test_what_rests_on_kafka_survives_the_daemon(scene: Scene) -> None:
    """It is killed while experiences rest: the next one lets them rest as long, and uses each as often as it may."""
    from synthetic.daemon.scene import EXPERIMENT
    from synthetic.deaths.killing import REUSE, UNBOUNDED

    limited = f"{REPLAY}.priority_fn=decay_limit_randomization"
    name = scene.submit(EXPERIMENT, *SHORT, *UNBOUNDED, *REUSE, limited)
    scene.until_step(name, 6)
    assert scene.kill("daemon", name)
    page = scene.until_ended(name)
    assert page.experiment.summary.state == "completed", page.experiment.summary
    books = page.experiment.books
    assert (books.balance, books.waiting, books.cooling) == (0, 0, 0)
    assert scene.host.restarts == 1
    report = scene.verified()
    assert report.clean, report.findings
    plans = sorted(scene.events(BatchPlanned), key=lambda plan: plan.step)
    rested_ns: dict[UUID, int] = {}
    uses: Counter[UUID] = Counter()
    for plan in plans:
        for item in plan.experiences:
            uses[item.experience] += 1
            assert item.use == uses[item.experience] <= plan.max_uses == 3
            assert plan.decided_at_ns >= rested_ns.get(item.experience, 0)
            rested_ns[item.experience] = plan.eligible_at_ns
    assert len(plans) == 16
    assert max(uses.values()) > 1
