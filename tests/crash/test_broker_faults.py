"""The broker dies and comes back, soon or late: the run completes, and the log keeps every promise."""

from __future__ import annotations

import random
import time

import pytest
from cluster_scene import Cluster, ClusterScene, kill_broker
from scene import EXPERIMENT, SHORT

from rftd.ops import limits

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.servers]


def test_a_run_survives_kills_of_the_broker(cluster_scene: ClusterScene, chance: random.Random) -> None:
    name = cluster_scene.submit(EXPERIMENT, "buffer.total_steps=40")
    assert len(cluster_scene.through(name, 3, kill_broker, chance).faults) > 0
    cluster_scene.proven(name, steps=45)
    assert cluster_scene.host.restarts == 0


def test_workers_that_die_while_the_broker_is_away_are_started_until_it_is_back(
    cluster: Cluster, cluster_scene: ClusterScene
) -> None:
    """Each process that is started meanwhile gives up; that it happens so often does not fail the experiment."""
    name = cluster_scene.submit(EXPERIMENT, "buffer.total_steps=40")
    cluster_scene.until_step(name, 8)
    page = cluster_scene.page(name)
    assert page is not None
    cluster.broker.kill()
    for worker in page.workers:
        cluster_scene.kill_pid(worker.pid)
    began_s = time.monotonic()
    ended = cluster_scene.until_log_counts("worker.ended", 2 * limits.RESTARTS_IN_A_ROW)
    while time.monotonic() - began_s < limits.ORPHAN_GRACE_S:
        time.sleep(0.1)
    status, text = cluster_scene.ready()
    assert status == 503 and "log" in text, text
    assert "code=4" in ended, ended
    cluster.broker.start()
    cluster_scene.proven(name, steps=45)
    assert cluster_scene.host.restarts == 0


def test_the_daemon_starts_and_stops_while_the_broker_is_away(cluster: Cluster, cluster_scene: ClusterScene) -> None:
    name = cluster_scene.submit(EXPERIMENT, "buffer.total_steps=40")
    cluster_scene.until_step(name, 8)
    cluster.broker.kill()
    said = cluster_scene.until_not_ready("log")
    assert "fix" in said or "RFTD-NET" in said, said
    cluster_scene.host.stop()
    assert cluster_scene.host.restarts == 0
    cluster.broker.start()
    cluster_scene.proven(name, steps=45)


def test_what_is_submitted_to_a_broker_that_is_away_is_there_when_it_is_back(
    cluster: Cluster, cluster_scene: ClusterScene
) -> None:
    first = cluster_scene.submit(EXPERIMENT, *SHORT)
    cluster_scene.until_ended(first)
    cluster.broker.kill()
    waiting = cluster_scene.spawn("submit", "submit", str(cluster_scene.write(name="second.yaml")), "-s", "name=second")
    cluster_scene.until_not_ready("log")
    cluster.broker.start()
    cluster_scene.until_ready()
    status = waiting.wait(90)
    listed = cluster_scene.rftd("ls", "--json").out
    assert (status == 0) == ('"second"' in listed), (status, listed)
