"""A real cluster of Ray refuses another release, and gives its actors the environment that the daemon asks for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from synthetic.daemon.ray_cluster import RayNodes, ray_nodes
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.until import poll

RELEASE = """
import json, sys
from ray._common.usage import usage_constants, usage_lib
from ray._private.ray_constants import KV_NAMESPACE_CLUSTER
from ray._raylet import GcsClient
client = GcsClient(address=sys.argv[1])
told = json.dumps({**usage_lib.get_cluster_metadata(client), "ray_version": sys.argv[2]}).encode()
client.internal_kv_put(usage_constants.CLUSTER_METADATA_KEY, told, True, KV_NAMESPACE_CLUSTER)
"""
"""Has the cluster say that it is of another release: what it says is all that Ray compares."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes() as made:
        yield made


def served(folder: Path, nodes: RayNodes, *options: str) -> Scene:
    return Scene(folder, "--workers", "ray", "--ray-address", nodes.address, *options)


def test_a_cluster_of_another_release_is_named_and_waited_for(tmp_path: Path, nodes: RayNodes) -> None:
    say_release(nodes, "2.0.0")
    scene = served(tmp_path, nodes)
    with scene.host:
        name = scene.submit(EXPERIMENT, "buffer.total_steps=4")
        said = f"Ray at {nodes.address} is of another release: Version mismatch"
        poll(lambda: said in scene.rftd("why", name, "--json").out, 180.0)
        assert "Ray: 2.0.0" in scene.rftd("why", name, "--json").out
        say_release(nodes, version("ray"))
        scene.until_ended(name, 180.0)


def say_release(nodes: RayNodes, release: str) -> None:
    subprocess.run([sys.executable, "-P", "-c", RELEASE, nodes.address, release], timeout=120, check=True)


def test_a_runtime_environment_reaches_every_actor(tmp_path: Path, nodes: RayNodes) -> None:
    hits = tmp_path / "hits"
    given = tmp_path / "environment.yaml"
    given.write_text(json.dumps({"env_vars": {"RFTD_FAULTS_HITS": str(hits)}}))
    scene = served(tmp_path, nodes, "--ray-runtime-env", str(given))
    with scene.host:
        name = scene.submit(EXPERIMENT, "buffer.total_steps=4")
        scene.until_ended(name, 180.0)
    reached = set(hits.read_text().split())
    assert {"trainer.after_step_append", "explorer.after_append"} <= reached


def test_a_node_with_another_rftd_is_reported_with_the_error_of_its_import(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "rftd").mkdir(parents=True)
    (tmp_path / "elsewhere" / "rftd" / "__init__.py").write_text("")
    cluster = RayNodes()
    try:
        cluster.add(PYTHONPATH=str(tmp_path / "elsewhere"))
        scene = served(tmp_path, cluster)
        with scene.host:
            name = scene.submit(EXPERIMENT, "buffer.total_steps=4")
            error = "ModuleNotFoundError: No module named 'rftd.workers'"
            poll(lambda: f": {error}; is the same release" in scene.rftd("why", name, "--json").out, 180.0)
    finally:
        cluster.close()
