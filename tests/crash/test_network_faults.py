"""The network between clients and servers fails in every way a proxy can make it fail: the run completes."""

from __future__ import annotations

import random

import pytest
from synthetic.daemon.scene import EXPERIMENT
from synthetic.servers.cluster_scene import NETWORK, Cluster, ClusterScene, fail_network

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.servers]


@pytest.mark.parametrize("where", ["kafka", "postgres"])
def test_a_run_survives_a_network_that_fails_in_every_way(
    cluster_scene: ClusterScene, chance: random.Random, where: str
) -> None:
    name = cluster_scene.submit(EXPERIMENT, "buffer.total_steps=120")
    kinds = iter(NETWORK)

    def fail(cluster: Cluster, chance: random.Random) -> str:
        return fail_network(cluster, chance, next(kinds), where)

    assert cluster_scene.through(name, len(NETWORK), fail, chance).faults
    cluster_scene.proven(name, steps=125)
    assert cluster_scene.host.restarts == 0


@pytest.mark.parametrize("gone", [False, True])
def test_a_path_to_the_broker_that_is_a_black_hole_for_long(
    cluster: Cluster, cluster_scene: ClusterScene, gone: bool
) -> None:
    """Longer than every request waits; afterwards the same connections may work again, or be gone."""
    name = cluster_scene.submit(EXPERIMENT, "buffer.total_steps=40")
    cluster_scene.until_step(name, 8)
    cluster.kafka_proxy.black_hole()
    cluster_scene.until_not_ready("log")
    cluster.kafka_proxy.heal(reset=gone)
    cluster_scene.until_ready()
    cluster_scene.proven(name, steps=45)
    assert cluster_scene.host.restarts == 0


def test_a_path_to_the_database_that_is_a_black_hole_for_long(cluster: Cluster, cluster_scene: ClusterScene) -> None:
    name = cluster_scene.submit()
    cluster_scene.until_step(name, 8)
    cluster.postgres_proxy.black_hole()
    cluster_scene.until_not_ready("state")
    cluster_scene.until_completed_in_log(steps=65)
    cluster.postgres_proxy.heal()
    cluster_scene.until_ready()
    cluster_scene.proven(name, steps=65)
