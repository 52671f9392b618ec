"""The daemon with its workers on a Ray cluster of this machine: real actors, fake engines."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from synthetic.daemon.ray_cluster import RayNodes, ray_nodes
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.servers.otlp_receiver import OtlpReceiver, otlp_receiver
from synthetic.until import poll

SIZES = """
import sys, time, ray
from rftd.workers.hosts.ray.cluster import RayCluster
ray.init(sys.argv[1], log_to_driver=False, configure_logging=False)
cluster = RayCluster(local_log=False)
cluster.look()
assert not any(node.sized for node in cluster.nodes), "nothing waits for it"
while not all(node.sized for node in cluster.nodes):
    time.sleep(0.05)
    cluster.look()
print("SIZES", *(node.memory_bytes for node in cluster.nodes))
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes() as made:
        yield made


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as made:
        yield made


@pytest.fixture
def scene(tmp_path: Path, nodes: RayNodes, receiver: OtlpReceiver) -> Iterator[Scene]:
    ray = ("--workers", "ray", "--ray-address", nodes.address)
    made = Scene(tmp_path, *ray, "--traces", receiver.url, environ={"RFTD_TRACE_RATIO": "1"})
    with made.host:
        yield made


def live(scene: Scene, name: str) -> dict[str, int]:
    page = scene.page(name)
    return {each.role: each.pid for each in page.workers if each.state == "live"} if page is not None else {}


def test_a_run_on_actors_outlives_each_of_them_and_its_daemon_and_leaves_nothing(
    scene: Scene, nodes: RayNodes, receiver: OtlpReceiver, tmp_path: Path
) -> None:
    text = EXPERIMENT + "log: {group_by_node: true}\nmonitor: {enable_ray_timeline: true}\n"
    name = scene.submit(text, "buffer.total_steps=4000")
    scene.until_step(name, 12, 180.0)
    for role in ("explorer", "trainer"):
        before = live(scene, name)
        os.kill(before[role], signal.SIGKILL)
        poll(lambda role=role, before=before: live(scene, name).get(role) not in (None, before[role]), 120.0)
    kept = live(scene, name)
    scene.kill("daemon", name)
    reached = scene.until_step(name, 12, 120.0).experiment.summary.step
    scene.until_step(name, reached + 20, 120.0)
    assert live(scene, name) == kept, "the next daemon takes its actors over"
    lines = scene.rftd("logs", name, "-n", "200").out
    assert "generation.started" in lines
    scene.rftd("cancel", name)
    scene.until_ended(name)
    poll(lambda: not nodes.left(), 60.0, told=nodes.left)
    # Written by the sweep that found nothing left.
    poll(lambda: (tmp_path / "checkpoints" / "crash" / "sums" / "monitor" / "timeline.json").exists(), 60.0)
    assert scene.verified().clean
    # A trace is whole unless one of its processes was killed before it sent its spans.
    crossed = [each for each in map(receiver.above, receiver.named("create rftd.experiences")) if len(each) == 4]
    assert crossed
    for path in crossed:
        assert [span.service for span in path] == ["rftd-explorer", "rftd-explorer", "rftd-explorer", "rftd-daemon"]
        assert (path[-1].name, len({span.trace for span in path})) == ("send rftd.tasks", 1)
    loads = [[span.name for span in receiver.above(each)] for each in receiver.named("load_weights")]
    assert ["load_weights", "publish_weights", "train_step", "plan_batch"] in loads


def test_what_has_no_room_waits_and_says_for_what(scene: Scene, nodes: RayNodes) -> None:
    first = scene.submit(EXPERIMENT, "buffer.total_steps=4000", "explorer.rollout_model.engine_num=3")
    poll(lambda: "1 CPU on one node; none is free" in scene.rftd("why", first).out, 120.0)
    nodes.add(2)
    scene.until_step(first, 8, 180.0)
    scene.rftd("cancel", first)
    scene.until_ended(first)
    poll(lambda: not nodes.left(), 60.0, told=nodes.left)


def test_workers_whose_daemon_is_gone_for_good_leave_and_give_back_what_they_held(
    tmp_path: Path, nodes: RayNodes
) -> None:
    scene = Scene(tmp_path, "--workers", "ray", "--ray-address", nodes.address)
    with scene.host:
        name = scene.submit(EXPERIMENT, "buffer.total_steps=4000")
        scene.until_step(name, 8, 180.0)
        assert len(nodes.left()) == 4, "two actors, each with a group"
        os.kill(scene.host.pid, signal.SIGKILL)
        # Nobody starts it again: they miss the log for a while, then wait for somebody who asks how they ended.
        poll(lambda: not nodes.left(), 180.0, told=nodes.left)


def last_rank() -> psutil.Process:
    """The process of the last of a trainer's four ranks."""
    every = psutil.process_iter(["cmdline"])
    (found,) = (each for each in every if "rank=3/4" in (each.info["cmdline"] or []))
    return found


def test_a_trainer_over_two_nodes_outlives_the_loss_of_either(scene: Scene, nodes: RayNodes) -> None:
    """A rank of its second node is killed, and then that node's raylet."""
    nodes.add(2)
    spread = 'trainer.engine_args={"ranks": 4, "nodes": 2}'
    name = scene.submit(EXPERIMENT, "buffer.total_steps=4000", spread)
    scene.until_step(name, 8, 180.0)
    assert sum(each.endswith("/node_1") for each in nodes.left()) == 1
    rank = last_rank()
    rank.kill()
    poll(lambda: f"rank 3 of 4 (pid {rank.pid} on " in scene.rftd("logs", name, "-n", "400").out, 120.0)
    lost_at = scene.until_step(name, 8, 60.0).experiment.summary.step
    reached = scene.until_step(name, lost_at + 8, 180.0).experiment.summary.step
    nodes.lose_node_of(last_rank())
    nodes.add(2)
    scene.until_step(name, reached + 8, 180.0)
    scene.rftd("cancel", name)
    scene.until_ended(name)
    poll(lambda: not nodes.left(), 60.0, told=nodes.left)
    assert scene.verified().clean


def test_each_node_says_how_much_memory_it_has(nodes: RayNodes) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", SIZES, nodes.address], capture_output=True, text=True, timeout=180, check=True
    )
    # Ray's own lines, about nodes that were lost before, go to the same output.
    (said,) = (line for line in done.stdout.splitlines() if line.startswith("SIZES "))
    sizes_bytes = [int(each) for each in said.split()[1:]]
    assert len(sizes_bytes) >= 2, "the head and a node"
    assert set(sizes_bytes) == {psutil.virtual_memory().total}


def test_a_cluster_that_is_not_there_is_waited_for_and_named(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "--workers", "ray", "--ray-address", "127.0.0.1:1")
    with scene.host:
        name = scene.submit(EXPERIMENT, "buffer.total_steps=10")
        poll(lambda: "Ray at 127.0.0.1:1" in scene.rftd("why", name).out, 180.0)
        scene.rftd("cancel", name)
        scene.until_ended(name)


def test_a_cluster_that_refuses_the_token_says_so_and_is_waited_for(tmp_path: Path, nodes: RayNodes) -> None:
    stranger = {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    scene = Scene(tmp_path, "--workers", "ray", "--ray-address", nodes.address, environ=stranger)
    with scene.host:
        name = scene.submit(EXPERIMENT, "buffer.total_steps=10")
        refused = f"Ray at {nodes.address} refuses this daemon's token"
        poll(lambda: refused in scene.rftd("why", name, "--json").out, 180.0)
        said = scene.rftd("why", name, "--json").out + (tmp_path / "daemon.log").read_text()
        assert stranger["RAY_AUTH_TOKEN"] not in said
        scene.rftd("cancel", name)
        scene.until_ended(name)
