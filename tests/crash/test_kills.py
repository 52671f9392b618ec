"""SIGKILL of every process at random moments: the run completes, and the log keeps every promise."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

EVERY_ROLE = ("daemon", "explorer", "trainer")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "roles"),
    [
        # `test_dense_kills` kills each role beside files; beside servers the daemon alone has what a kill can tear.
        pytest.param("embedded", EVERY_ROLE, id="embedded-every role"),
        pytest.param("production", EVERY_ROLE, id="production-every role", marks=pytest.mark.servers),
        pytest.param("production", ("daemon",), id="production-daemon", marks=pytest.mark.servers),
    ],
    indirect=["pair"],
)
def test_a_run_survives_kills(scene: Any, chance: random.Random, roles: tuple[str, ...]) -> None:
    name = scene.submit()
    for _ in range(4):
        time.sleep(chance.uniform(0.3, 1.5))
        page = scene.page(name)
        if page is not None and page.experiment.summary.state == "completed":
            break
        scene.kill(chance.choice(roles), name)
    page = scene.until_ended(name)
    assert page.experiment.summary.state == "completed", page.experiment.summary
    assert page.experiment.books.balance == 0
    report = scene.verified()
    assert report.clean, report.findings
    assert report.experiments[0].steps == 65


@pytest.mark.e2e
def test_a_drained_daemon_goes_on_where_it_stopped(scene: Any) -> None:
    name = scene.submit()
    while (page := scene.page(name)) is None or page.experiment.summary.step < 10:
        time.sleep(0.05)
    scene.host.stop()
    page = scene.until_ended(name)
    assert page.experiment.summary.state == "completed"
    assert scene.verified().clean
