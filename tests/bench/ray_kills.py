"""kill -9 on a Ray cluster of two nodes: explorer, trainer and the raylet of the second node, so many times each.

Each run must go on after every kill, `verify` must find nothing, and nothing may be left on the cluster. Meanwhile
somebody asks the daemon why the run waits, again and again: the slowest answer bounds how long its decisions paused,
for both are made by the same loop. At the end the run waits for a minute for a node that is not there.
Run in an environment with ray: python -P tests/bench/ray_kills.py [--kills 20] [--what explorer trainer raylet]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import httpx

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent.parent))

from figures import tell
from synthetic.daemon.ray_cluster import RayNodes, ray_nodes
from synthetic.daemon.scene import EXPERIMENT, Scene

ASK_S: Final = 0.02
GOES_ON_S: Final = 300.0
NO_ROOM_S: Final = 60.0


class Asker:
    """Asks the daemon all the time, and notes how long each answer took."""

    def __init__(self, scene: Scene, name: str) -> None:
        self._scene, self._name = scene, name
        self._stop = threading.Event()
        self.took_ms: list[float] = []
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        with httpx.Client(base_url=self._scene.host.url, timeout=30.0, trust_env=False) as client:
            while not self._stop.wait(ASK_S):
                began_s = time.perf_counter()
                client.get(f"/v1/experiments/{self._name}/why").raise_for_status()
                self.took_ms.append((time.perf_counter() - began_s) * 1e3)

    def figures(self) -> dict[str, float]:
        """Median, 99th percentile and the slowest answer in ms since the last time."""
        took, self.took_ms = sorted(self.took_ms), []
        return {
            "asked": len(took),
            "median_ms": round(took[len(took) // 2], 1),
            "p99_ms": round(took[int(len(took) * 0.99)], 1),
            "slowest_ms": round(took[-1], 1),
            "over_100_ms": sum(each > 100.0 for each in took),
        }

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


def live(scene: Scene, name: str) -> dict[str, tuple[str, int]]:
    """The live workers: id and process, by role."""
    page = scene.page(name)
    workers = page.workers if page is not None else ()
    return {each.role: (str(each.id), each.pid) for each in workers if each.state == "live"}


def step_of(scene: Scene, name: str) -> int:
    page = scene.page(name)
    return page.experiment.summary.step if page is not None else -1


def until_it_goes_on(scene: Scene, name: str, gone: set[str]) -> float:
    """The seconds until none of the killed workers is live and another step is completed."""
    began_s, step = time.monotonic(), step_of(scene, name)
    while time.monotonic() - began_s < GOES_ON_S:
        alive = live(scene, name)
        if len(alive) == 2 and not gone & {id for id, _ in alive.values()} and step_of(scene, name) > step:
            return time.monotonic() - began_s
        time.sleep(0.1)
    raise AssertionError(f"it did not go on: {scene.rftd('why', name).out}")


def killed_run(what: str, kills: int, nodes: RayNodes, folder: Path) -> dict[str, Any]:
    """One run, during which a worker or its node is killed so many times."""
    chance = random.Random(what)
    scene = Scene(folder, "--workers", "ray", "--ray-address", nodes.address)
    took_s: list[float] = []
    with scene.host:
        name = scene.submit(EXPERIMENT, "buffer.total_steps=1000000")
        scene.until_step(name, 10, GOES_ON_S)
        asker = Asker(scene, name)
        for _ in range(kills):
            time.sleep(chance.uniform(0.5, 3.0))
            workers = live(scene, name)
            if what == "raylet":
                gone = {id for id, _ in workers.values()}
                os.kill(nodes.newest_raylet(), signal.SIGKILL)
                nodes.forget_newest()
                nodes.add()
            else:
                id, pid = workers[what]
                gone = {id}
                os.kill(pid, signal.SIGKILL)
            took_s.append(until_it_goes_on(scene, name, gone))
            print(what, len(took_s), f"{took_s[-1]:.1f} s", file=sys.stderr, flush=True)
        figures: dict[str, Any] = {"while_killed": asker.figures()}
        if what == "raylet":
            figures["without_room"] = _without_room(nodes, asker)
        asker.end()
        steps = step_of(scene, name)
        scene.rftd("cancel", name)
        scene.until_ended(name)
    report = scene.verified()
    return {
        "what": what,
        "kills": len(took_s),
        "goes_on_after_median_s": round(sorted(took_s)[len(took_s) // 2], 1),
        "goes_on_after_longest_s": round(max(took_s), 1),
        "steps": steps,
        "findings": len(report.findings),
        "generations": report.experiments[0].generations,
        "left_on_cluster": nodes.left(),
        **figures,
    }


def _without_room(nodes: RayNodes, asker: Asker) -> dict[str, float]:
    """The daemon's answers while nothing can be placed."""
    os.kill(nodes.newest_raylet(), signal.SIGKILL)
    nodes.forget_newest()
    asker.took_ms = []
    time.sleep(NO_ROOM_S)
    said = asker.figures()
    nodes.add()
    return said


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--what", nargs="+", default=["explorer", "trainer", "raylet"])
    options = parser.parse_args()
    runs = []
    with ray_nodes() as nodes:
        for what in options.what:
            with tempfile.TemporaryDirectory() as folder:
                runs.append(killed_run(what, options.kills, nodes, Path(folder)))
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    tell({"runs": runs})
    assert not any(run["findings"] or run["left_on_cluster"] for run in runs), runs


if __name__ == "__main__":
    main()
