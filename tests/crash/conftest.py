"""Chance that a failing test repeats, and servers that these tests kill."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from synthetic.servers.cluster_scene import Cluster, ClusterScene


@pytest.fixture
def chance(request: Any) -> random.Random:
    return random.Random(request.node.name)


@pytest.fixture(scope="session")
def cluster_of_session(servers_folder: Path) -> Iterator[Cluster]:
    """A Kafka and a Postgres that are killed and cut off, and started again for the next test."""
    from synthetic.servers.cluster_scene import Cluster

    with Cluster(servers_folder / "cluster") as cluster:
        yield cluster


@pytest.fixture
def cluster(cluster_of_session: Cluster) -> Iterator[Cluster]:
    """The session's cluster, up and whole before and after each test."""
    cluster_of_session.revive()
    yield cluster_of_session
    cluster_of_session.revive()


@pytest.fixture
def cluster_scene(cluster: Cluster, tmp_path: Path) -> Iterator[ClusterScene]:
    """A daemon on that cluster, through its proxies."""
    made = cluster.scene(tmp_path)
    with made.host:
        yield made
