"""The broker dies and comes back, soon or late: the run completes, and the log keeps every promise."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT
from synthetic.servers.cluster_scene import Cluster, ClusterScene, kill_broker
from synthetic.until import PATIENCE_S

from rftd.ops import limits

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.servers]


def test_a_run_survives_kills_of_the_broker(cluster_scene: ClusterScene, chance: random.Random) -> None:
    name = cluster_scene.submit(EXPERIMENT, "buffer.total_steps=40")
    assert cluster_scene.through(name, 3, kill_broker, chance).faults
    cluster_scene.proven(name, steps=45)
    assert cluster_scene.host.restarts == 0


def test_everybody_dies_while_the_broker_is_away_for_long(cluster: Cluster, cluster_scene: ClusterScene) -> None:
    """Longer than `limits.ORPHAN_GRACE_S`. The daemon that is started again waits for the broker, and says so."""
    name = cluster_scene.submit(EXPERIMENT, "buffer.total_steps=40")
    page = cluster_scene.until_step(name, 8)
    cluster.broker.kill()
    began_s = time.monotonic()
    for worker in page.workers:
        cluster_scene.kill_pid(worker.pid)
    assert "RFTD-NET-001" in cluster_scene.until_not_ready("log")
    cluster_scene.kill("daemon", name)

    def start_daemon() -> None:
        while cluster_scene.host.restarts == 0:
            cluster_scene.host.tend()

    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(start_daemon)
        said = cluster_scene.until_not_ready("Kafka does not answer")
        assert "fix: check the address" in said, said
        time.sleep(max(0.0, limits.ORPHAN_GRACE_S + 2 - (time.monotonic() - began_s)))
        cluster.broker.start()
        again.result(PATIENCE_S)
    cluster_scene.proven(name, steps=45)
    assert cluster_scene.host.restarts == 1


def test_the_daemon_stops_while_the_broker_is_away(cluster: Cluster, cluster_scene: ClusterScene) -> None:
    name = cluster_scene.submit(EXPERIMENT, "buffer.total_steps=40")
    cluster_scene.until_step(name, 8)
    cluster.broker.kill()
    cluster_scene.until_not_ready("log")
    began_s = time.monotonic()
    cluster_scene.host.stop()
    assert time.monotonic() - began_s < 28, "it had to be killed"
    assert "stopped before it was ready" not in (cluster_scene.folder / "daemon.log").read_text()
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
    status = waiting.wait(PATIENCE_S)
    listed = cluster_scene.rftd("ls", "--json").out
    assert (status == 0) == ('"second"' in listed), (status, listed)
