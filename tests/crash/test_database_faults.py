"""Postgres dies and comes back: training does not wait for it, and its tables are the log's fold in the end."""

from __future__ import annotations

import random

import pytest
from synthetic.daemon.scene import EXPERIMENT
from synthetic.servers.cluster_scene import Cluster, ClusterScene, kill_database

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.servers]


def test_a_run_survives_kills_of_the_database(cluster_scene: ClusterScene, chance: random.Random) -> None:
    name = cluster_scene.submit(EXPERIMENT, "buffer.total_steps=100")
    assert cluster_scene.through(name, 3, kill_database, chance).faults
    cluster_scene.proven(name, steps=105)
    assert cluster_scene.host.restarts == 0


def test_training_goes_on_without_the_database(cluster: Cluster, cluster_scene: ClusterScene) -> None:
    """/readyz says why nothing is shown; afterwards the projector catches up."""
    name = cluster_scene.submit()
    cluster_scene.until_step(name, 8)
    cluster.postgres.kill()
    said = cluster_scene.until_not_ready("state")
    assert "Postgres" in said, said
    shown = cluster_scene.rftd("get", name)
    assert shown.status == 4, shown
    assert "Traceback" not in shown.err, shown
    why = cluster_scene.rftd("why", name)
    assert why.status == 0 and "is running" in why.out, why
    assert "no daemon" not in why.out, why
    cluster_scene.until_completed_in_log(steps=65)
    cluster.postgres.start()
    cluster_scene.until_ready()
    cluster_scene.proven(name, steps=65)
    assert cluster_scene.host.restarts == 0


def test_both_servers_die_at_once(cluster: Cluster, cluster_scene: ClusterScene) -> None:
    name = cluster_scene.submit(EXPERIMENT, "buffer.total_steps=40")
    cluster_scene.until_step(name, 8)
    cluster.broker.kill()
    cluster.postgres.kill()
    cluster_scene.until_not_ready("log")
    why = cluster_scene.rftd("why", name)
    assert why.status == 0 and "is running" in why.out, why
    assert "the other lines are from memory" in " ".join(why.out.split()), why
    assert "no daemon" not in why.out, why
    cluster.revive()
    cluster_scene.until_ready()
    cluster_scene.proven(name, steps=45)
