"""Workers of a daemon in several places: roles with launchers of their own, actors that still open, nodes that lack."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from synthetic.daemon.ray_cluster import RayNodes, ray_nodes
from synthetic.daemon.scene import EXPERIMENT, Scene, stopped_by
from synthetic.daemon.third_party import install
from synthetic.until import poll

from rftd.streams.events.worker import WorkerLost, WorkerStarted

LONG = "buffer.total_steps=4000"
REWARD = """
class Ones:
    def score(self, response, truth, task):
        return 1.0
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes() as made:
        yield made


def served(folder: Path, nodes: RayNodes, *options: str, workers: str = "ray", **environ: str) -> Scene:
    return Scene(folder, "--workers", workers, "--ray-address", nodes.address, *options, environ=environ)


def live(scene: Scene, name: str) -> dict[str, int]:
    page = scene.page(name)
    return {each.role: each.pid for each in page.workers if each.state == "live"} if page is not None else {}


def live_without(scene: Scene, name: str, ended: int) -> dict[str, int]:
    """The workers by role, once both are there and neither is this process: one may join while the other is away."""
    workers: dict[str, int] = {}

    def both() -> bool:
        workers.clear()
        workers.update(live(scene, name))
        return workers.keys() == {"trainer", "explorer"} and ended not in workers.values()

    poll(both, told=lambda: workers)
    return workers


@pytest.mark.parametrize(("here", "there"), [("trainer", "explorer"), ("explorer", "trainer")])
def test_each_role_has_the_launcher_that_the_daemon_was_given_for_it(
    tmp_path: Path, nodes: RayNodes, here: str, there: str
) -> None:
    """Both outlive a worker of each, and the daemon; in the end nothing is left on the cluster."""
    scene = served(tmp_path, nodes, workers=f"{here}=local,{there}=ray")
    with scene.host:
        name = scene.submit(EXPERIMENT, LONG)
        scene.until_step(name, 8, 180.0)
        workers = live(scene, name)
        assert psutil.Process(workers[here]).ppid() == scene.host.pid
        assert "rftd/" in " ".join(nodes.left())
        assert all(f"/{there}/" in each for each in nodes.left())
        kept = workers
        for role in (here, there):
            os.kill(kept[role], signal.SIGKILL)
            kept = live_without(scene, name, kept[role])
        scene.kill("daemon", name)
        reached = scene.until_step(name, 8).experiment.summary.step
        scene.until_step(name, reached + 8, 180.0)
        assert live(scene, name) == kept
        scene.rftd("cancel", name)
        scene.until_ended(name)
        poll(lambda: not nodes.left(), 60.0, told=nodes.left)
    assert scene.verified().clean


def test_an_actor_that_opens_its_engine_outlives_the_daemon(tmp_path: Path, nodes: RayNodes) -> None:
    """It stands still before it joins, as one does that reads a large model."""
    once = tmp_path / "stopped"
    given = tmp_path / "environment.yaml"
    given.write_text(json.dumps({"env_vars": {"RFTD_FAULTS": f"worker.before_join=stop@1!{once}"}}))
    scene = served(tmp_path, nodes, "--ray-runtime-env", str(given))
    with scene.host:
        name = scene.submit(EXPERIMENT, "buffer.total_steps=4")
        poll(lambda: len(stopped_by(once)) == 1)
        [worker] = stopped_by(once)
        scene.kill("daemon", name)
        # `page`: whoever is gone is started again.
        poll(lambda: scene.page(name) is not None and "worker.adopted" in (tmp_path / "daemon.log").read_text())
        worker.send_signal(signal.SIGCONT)
        scene.until_ended(name, 180.0)
        poll(lambda: not nodes.left(), 60.0, told=nodes.left)
    started = scene.events(WorkerStarted)
    assert Counter(each.role for each in started) == {"trainer": 1, "explorer": 1}
    assert worker.pid in {each.pid for each in started}
    assert scene.events(WorkerLost) == []
    assert scene.verified().clean


def test_a_node_without_a_plug_in_is_named_and_the_run_waits(
    tmp_path: Path, nodes: RayNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon has it and its actors do not; once they have it, too, the run goes on."""
    here, there = tmp_path / "here", tmp_path / "there"
    given = tmp_path / "environment.yaml"
    given.write_text(json.dumps({"env_vars": {"PYTHONPATH": str(there)}}))
    for folder in (here, there):
        folder.mkdir()
    put_plug_in(here)
    monkeypatch.syspath_prepend(here)
    scene = served(tmp_path, nodes, "--ray-runtime-env", str(given), PYTHONPATH=str(here))
    with scene.host:
        text = EXPERIMENT.replace("exact_match_reward", "ones")
        name = scene.submit(text, "buffer.total_steps=4")
        poll(lambda: "paused" in scene.rftd("get", name).out and "'ones'" in scene.rftd("why", name).out, 180.0)
        tried = len(scene.events(WorkerStarted))
        assert tried <= 5, "it is no crash loop"
        put_plug_in(there)
        scene.rftd("resume", name)
        scene.until_ended(name, 180.0)
    assert scene.verified().clean


def put_plug_in(folder: Path) -> None:
    install(folder, "ones_reward", REWARD, {"rftd.rewards": {"ones": "ones_reward:Ones"}})


def test_the_memory_monitor_of_a_node_is_named_as_the_reason(tmp_path: Path, nodes: RayNodes) -> None:
    """Whatever uses the memory: this node takes a twentieth of it for too much."""
    nodes.lose_newest()
    nodes.add(2, RAY_memory_usage_threshold="0.02", RAY_memory_monitor_refresh_ms="100")
    scene = served(tmp_path, nodes)
    with scene.host:
        name = scene.submit(EXPERIMENT, LONG)
        said = "Ray's memory monitor ended its actor on "
        poll(lambda: said in scene.rftd("why", name, "--json").out, 180.0, told=lambda: scene.rftd("why", name).out)
        scene.rftd("cancel", name)
        scene.until_ended(name)
        poll(lambda: not nodes.left(), 60.0, told=nodes.left)
