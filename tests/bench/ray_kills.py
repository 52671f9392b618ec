"""kill -9 on a Ray cluster of two nodes: explorer, trainer and the raylet of the second node, so many times each.

Each run must go on after every kill, `verify` must find nothing, and no actor, no placement group, no process and no
shared memory of it may be left. Meanwhile another process asks the daemon for a sign of life, again and again: the
slowest answer bounds how long its decisions paused, for both are made by the same loop. What the two of them waited for
a processor that others had, as the kernel tells it, is taken off. With `room` the run waits for a minute for a node
that is not there, and `why` must name it.

Kills are made in runs of a few each, over as many calls as it takes: a run that ended is a line of the record.
Run in an environment with ray: python -P tests/bench/ray_kills.py --record kills.jsonl [--kills 20] [--each-run 5]
    [--what explorer trainer raylet room]
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import note, read_options, tell
from left_behind import Watch
from synthetic.daemon.ray_cluster import RayNodes, ray_nodes
from synthetic.daemon.scene import EXPERIMENT, Scene

ASK_S: Final = 0.02
GOES_ON_S: Final = 300.0
NO_ROOM_S: Final = 60.0
LEFT_S: Final = 10.0
"""The longest that what a run started may stay after its daemon."""
SLOWEST_MS: Final = 100.0
LACK: Final = "1 CPU on one node; none is free"


class Answer(NamedTuple):
    """One question to the daemon: the time until it was answered, and the part of it that somebody had no processor."""

    took_ms: float
    starved_ms: float


class Asker:
    """Asks the daemon all the time, and notes how long each answer took.

    In a process of its own: here somebody starts nodes and kills them, and a thread beside would wait for the
    interpreter while it does, which looks like a daemon that pauses.
    """

    def __init__(self, scene: Scene, answers: Path) -> None:
        answers.touch()
        self._answers = answers
        self._read = 0
        """The answers that the last figures were of, and those before."""
        # The loop alone answers this one: no table and no log is read, on threads whose waits nobody would take off.
        ask = [sys.executable, "-P", __file__, "--ask", f"{scene.host.url}/livez", str(scene.host.pid)]
        with answers.open("ab") as output:
            self._process = subprocess.Popen(ask, stdout=output)

    def __enter__(self) -> Asker:
        """Returns once it has been answered."""
        while not self._answers.stat().st_size:
            assert self._process.poll() is None, "the asker has ended"
            time.sleep(0.1)
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.terminate()
        self._process.wait()

    def figures(self) -> dict[str, float]:
        """The answers since the last time: how long they took, and what is left without the waits for a processor."""
        assert self._process.poll() is None, "the asker has ended"
        lines = self._answers.read_text().splitlines()
        answers = [Answer(*json.loads(line)) for line in lines[self._read :]]
        self._read = len(lines)
        took_ms = sorted(each.took_ms for each in answers)
        ran_ms = sorted(each.took_ms - each.starved_ms for each in answers)
        return {
            "asked": len(answers),
            "median_ms": round(took_ms[len(took_ms) // 2], 1),
            "slowest_ms": round(took_ms[-1], 1),
            "with_processor_p99_ms": round(ran_ms[int(len(ran_ms) * 0.99)], 1),
            "with_processor_slowest_ms": round(ran_ms[-1], 1),
            "slower_than_100_with_processor": sum(each > SLOWEST_MS for each in ran_ms),
        }


def ask(url: str, daemon: int) -> None:
    """Writes a line for each answer, until the process is ended."""
    own = os.getpid()
    with httpx.Client(timeout=30.0, trust_env=False) as client:
        while True:
            time.sleep(ASK_S)
            before_ms = starved_ms(daemon) + starved_ms(own)
            began_s = time.perf_counter()
            client.get(url).raise_for_status()
            took_ms = (time.perf_counter() - began_s) * 1e3
            after_ms = starved_ms(daemon) + starved_ms(own)
            sys.stdout.write(json.dumps(Answer(took_ms, min(took_ms, after_ms - before_ms))) + "\n")
            sys.stdout.flush()


def starved_ms(process: int) -> float:
    """The time for which its main thread was ready and another ran, as the kernel counts it."""
    return int(Path(f"/proc/{process}/task/{process}/schedstat").read_text().split()[1]) / 1e6


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


def killed_run(what: str, kills: int, seed: str, nodes: RayNodes, folder: Path) -> dict[str, Any]:
    """One run, during which a worker or its node is killed so many times, or, with `room`, has no node for a minute."""
    chance = random.Random(seed)
    scene = Scene(folder, "--workers", "ray", "--ray-address", nodes.address)
    took_s: list[float] = []
    with scene.host:
        name = scene.submit(EXPERIMENT, "buffer.total_steps=1000000")
        scene.until_step(name, 10, GOES_ON_S)
        with Asker(scene, folder / "answers.jsonl") as asker:
            if what == "room":
                figures: dict[str, Any] = {"without_room": _without_room(scene, name, nodes, asker)}
            else:
                for _ in range(kills):
                    time.sleep(chance.uniform(0.5, 3.0))
                    took_s.append(until_it_goes_on(scene, name, _kill(what, live(scene, name), nodes)))
                    print(what, len(took_s), f"{took_s[-1]:.1f} s", file=sys.stderr, flush=True)
                figures = {"went_on_after_s": [round(each, 1) for each in took_s], "while_killed": asker.figures()}
        steps = step_of(scene, name)
        scene.rftd("cancel", name)
        scene.until_ended(name)
    report = scene.verified()
    return {
        "what": what,
        "kills": len(took_s),
        "steps": steps,
        "findings": len(report.findings),
        "generations": report.experiments[0].generations,
        "left_on_cluster": nodes.left(),
        "load": round(os.getloadavg()[1], 1),
        **figures,
    }


def _kill(what: str, workers: dict[str, tuple[str, int]], nodes: RayNodes) -> set[str]:
    """Kills it; the ids of the workers that are gone by that."""
    if what != "raylet":
        id, pid = workers[what]
        os.kill(pid, signal.SIGKILL)
        return {id}
    os.kill(nodes.newest_raylet(), signal.SIGKILL)
    nodes.forget_newest()
    nodes.add()
    return {id for id, _ in workers.values()}


def _without_room(scene: Scene, name: str, nodes: RayNodes, asker: Asker) -> dict[str, Any]:
    """The daemon's answers while nothing can be placed, and when it went on once there was room."""
    gone = {id for id, _ in live(scene, name).values()}
    os.kill(nodes.newest_raylet(), signal.SIGKILL)
    nodes.forget_newest()
    began_s = time.monotonic()
    while LACK not in (said := scene.rftd("why", name).out):
        assert time.monotonic() - began_s < GOES_ON_S, said
    named_after_s = time.monotonic() - began_s
    asker.figures()
    time.sleep(NO_ROOM_S)
    figures = asker.figures()
    assert LACK in (said := scene.rftd("why", name).out), said
    nodes.add()
    on_again_s = until_it_goes_on(scene, name, gone)
    return {**figures, "named_after_s": round(named_after_s, 1), "on_again_after_s": round(on_again_s, 1)}


def main() -> None:
    options = read_options(
        __doc__,
        kills=20,
        each_run=5,
        record=Path,
        what=["explorer", "trainer", "raylet", "room"],
        ask={"nargs": 2, "metavar": ("URL", "PID"), "help": "only that: ask the daemon, for another process"},
    )
    if options.ask is not None:
        ask(options.ask[0], int(options.ask[1]))
    if options.record is None:
        sys.exit("--record is missing")
    runs = [json.loads(each) for each in options.record.read_text().splitlines()] if options.record.exists() else []
    for what in options.what:
        while missing := _missing(what, options.kills, runs):
            # A cluster for each run: on one that another run's mishap had left full, nothing would be told.
            # It is made within the watch: its actors have the environment of the node that starts them.
            with tempfile.TemporaryDirectory() as folder, Watch(Path(folder)) as watch, ray_nodes() as nodes:
                kills, seed = min(missing, options.each_run), f"{what} {len(runs)}"
                figures = killed_run(what, kills, seed, nodes, Path(folder))
                left = watch.left(LEFT_S)
            runs.append({**figures, "processes": len(watch.processes), "left_behind": left})
            with options.record.open("a") as record:
                record.write(json.dumps(runs[-1]) + "\n")
            note(runs[-1])
    tell({"runs": runs, **{what: _all_of(what, runs) for what in options.what}})
    for run in runs:
        # A run of which nothing was seen would leave nothing, whatever it did.
        assert run["processes"] and not run["left_on_cluster"] and not run["left_behind"] and not run["findings"], run


def _missing(what: str, kills: int, runs: list[dict[str, Any]]) -> int:
    """The kills that are to be made; of `room`, which has none, 1 until there is a run."""
    of_it = [run for run in runs if run["what"] == what]
    return int(not of_it) if what == "room" else max(0, kills - sum(run["kills"] for run in of_it))


def _all_of(what: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all kills of one kind."""
    of_it = [run for run in runs if run["what"] == what]
    took_s = sorted(each for run in of_it for each in run.get("went_on_after_s", ()))
    asked = [run["without_room" if what == "room" else "while_killed"] for run in of_it]
    found = {
        "kills": len(took_s),
        "steps": sum(run["steps"] for run in of_it),
        "generations": sum(run["generations"] for run in of_it),
        "findings": sum(run["findings"] for run in of_it),
        "left": sum(len(run["left_on_cluster"]) + len(run["left_behind"]) for run in of_it),
        "asked": sum(each["asked"] for each in asked),
        "slower_than_100_with_processor": sum(each["slower_than_100_with_processor"] for each in asked),
        "slowest_answer_ms": max(each["slowest_ms"] for each in asked),
        "slowest_answer_with_processor_ms": max(each["with_processor_slowest_ms"] for each in asked),
    }
    if took_s:
        found |= {"goes_on_after_median_s": took_s[len(took_s) // 2], "goes_on_after_longest_s": took_s[-1]}
    return found


if __name__ == "__main__":
    main()
