"""Trackers of a real run: they are killed and so is the daemon, and they show what `rftd steps` shows."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import psutil
import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.tracking.tracked import Shown, as_shown, shown_by
from synthetic.until import poll

from rftd.daemon.views import history
from rftd.workers.tracking.cursor import CursorFile

KINDS: Final = ("jsonl", "tensorboard")
ROLLOUTS: Final = ("critic/rewards/", "prompt_length/", "response_length/", "reward/")
TRACKED: Final = (
    *("monitor={monitor_type: jsonl, also: [tensorboard]}", "stages=[]"),
    *("trainer.engine_args.step_s=0.6", "buffer.total_steps=150"),
)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize(("target", "count"), [("tracker", 20), ("daemon", 4)])
def test_killed_trackers_lose_and_double_nothing(
    tmp_path: Path, chance: random.Random, target: str, count: int
) -> None:
    scene = Scene(tmp_path)
    with scene.host:
        name = scene.submit(EXPERIMENT, *TRACKED)
        id = scene.until_step(name, 1).experiment.summary.id
        kills = 0
        while kills < count:
            time.sleep(chance.uniform(0.1, 1.0))
            kills += kill(scene, target, id)
            page = scene.page(name)
            assert page is None or page.experiment.summary.state == "running", f"ended after {kills} kills"
        assert scene.until_ended(name).experiment.summary.state == "completed"
        job = tmp_path / "checkpoints" / "crash" / "sums"
        for kind in KINDS:
            poll(lambda kind=kind: CursorFile(job, kind, id[:8]).read().ended)
            shown = shown_by(kind, job / "monitor" / kind)
            said = said_by_steps(scene, name, kind)
            if target == "daemon":  # its trainers repeat steps, which take another time than the first ones took
                shown = timeless(shown)
                said = timeless(said)
            assert shown == said
        poll(lambda: trackers_of(id) == [])


def timeless(figures: Iterable[Shown]) -> list[Shown]:
    """The figures that are the same when a step is repeated."""
    return [figure for figure in figures if figure.name not in ("perf/step_s", "perf/tokens_per_s")]


def kill(scene: Scene, target: str, experiment: str) -> int:
    """Kills the daemon, or every tracker; the number of processes that it struck."""
    if target == "daemon":
        os.kill(scene.host.pid, signal.SIGKILL)
        return 1
    living = trackers_of(experiment)
    for process in living:
        process.kill()
    return len(living)


def trackers_of(experiment: str) -> list[psutil.Process]:
    """The processes of the experiment's trackers."""
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if "tracker" in line and experiment in line:
            found.append(process)
    return found


def said_by_steps(scene: Scene, name: str, kind: str) -> list[Shown]:
    """The figures of every step and evaluation by the daemon's API, as this kind shows them."""
    with scene.client() as client:
        steps = client.ask(history.steps, name=name, limit=1000).value.items
        scores = client.ask(history.evals, name=name).value.items
    shown = []
    for row in steps:
        figures: dict[str, float] = {
            name: float("nan") if value is None else value for name, value in row.metrics.items()
        }
        figures |= {"perf/step_s": row.duration_s, "perf/tokens": row.tokens}
        if row.duration_s:
            figures["perf/tokens_per_s"] = row.tokens / row.duration_s
        shown += [as_shown(kind, "trainer", row.step, name, value) for name, value in figures.items()]
        shown += [as_shown(kind, "explorer", row.step, name, value) for name, value in of_rollouts(row.metrics)]
    for score in scores:
        scored = {**score.metrics, "score": score.score, "rows": score.rows}
        shown += [
            as_shown(kind, "explorer", score.version, f"eval/{score.taskset}/{name}", value)
            for name, value in scored.items()
            if value is not None
        ]
    return sorted(shown, key=lambda figure: (figure.run, figure.step, figure.name))


def of_rollouts(metrics: Mapping[str, float | None]) -> Iterator[tuple[str, float]]:
    """The figures of a step that its explorers' run shows."""
    for name, value in metrics.items():
        if value is not None and name.startswith(ROLLOUTS):
            yield name, value
            if name.startswith("critic/rewards/"):
                yield name.replace("critic/rewards/", "rollout/reward/"), value
