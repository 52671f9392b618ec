"""Trackers of a real run: their processes, and the figures that the daemon's API has of it."""

from __future__ import annotations

from collections.abc import Iterable

import psutil
from synthetic.daemon.scene import Scene
from synthetic.tracking.tracked import Shown, as_shown, of_rollouts

from rftd.daemon.http.views import history


def timeless(figures: Iterable[Shown]) -> list[Shown]:
    """The figures that are the same when a step is repeated."""
    return [figure for figure in figures if figure.name not in ("perf/step_s", "perf/tokens_per_s")]


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
