"""A sweep whose daemon is killed again and again, and one of its runs too: its table is complete, and nothing twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from synthetic.daemon.scene import Scene
from synthetic.until import PATIENCE_S, poll

from rftd.streams.events.experiment import ExperimentAccepted, ExperimentSubmitted
from rftd.streams.events.step import EvalCompleted, StepCompleted
from rftd.streams.events.sweep import SweepHalved, SweepRefused, SweepSubmitted

POINTS: Final = ("submission.before_append", "submission.between_appends", "submission.after_append")
"""Moments at which the daemon dies while it begins a run."""
SHORT: Final = ("stages=[]", "buffer.total_steps=30", "explorer.eval_interval=1000")
RATES: Final = "algorithm.optimizer.lr=1e-6,3e-6,1e-5"


def _page(scene: Scene, name: str) -> dict[str, Any] | None:
    """The table of a sweep; None while the daemon does not answer."""
    scene.host.tend()
    said = scene.rftd("sweeps", "show", name, "--json")
    page: dict[str, Any] | None = json.loads(said.out) if said.status == 0 else None
    return page


def _state(scene: Scene, name: str) -> str:
    page = scene.page(name)
    return "" if page is None else page.experiment.summary.state


def _until_over(scene: Scene, name: str) -> dict[str, Any]:
    pages: list[dict[str, Any]] = []

    def over() -> bool:
        page = _page(scene, name)
        pages[:] = [] if page is None else [page]
        return page is not None and page["sweep"]["over"]

    poll(over, timeout_s=2 * PATIENCE_S)
    return pages[0]


def _swept(scene: Scene, *options: str) -> str:
    """The name of a sweep that was submitted over the command line, as often as it takes for a daemon to answer."""
    overrides = [word for override in SHORT for word in ("-s", override)]
    while True:
        scene.host.tend()
        said = scene.rftd("sweep", "exp.yaml", *overrides, *options, "--request-id", "sweep-of-six", "--json")
        if said.status == 0:
            return str(json.loads(said.out)["name"])
        assert said.status == 4, said


@pytest.mark.e2e
@pytest.mark.slow
def test_a_killed_daemon_and_a_killed_run_leave_the_table_complete(tmp_path: Path) -> None:
    once = tmp_path / "once"
    once.mkdir()
    # Each at the second run that a daemon begins, so that the run before is under way.
    armed = ",".join(f"{point}=kill@2!{once / point}" for point in POINTS)
    scene = Scene(tmp_path, "--slots", "2", environ={"RFTD_FAULTS": armed})
    scene.write()
    with scene.host:
        name = _swept(scene, "-s", RATES, "--seeds", "2", "--at-once", "2")
        assert _swept(scene, "-s", RATES, "--seeds", "2", "--at-once", "2") == name, "asked twice is asked once"
        scene.until_step(f"{name}-1", 1)
        assert scene.kill("trainer", f"{name}-1")
        scene.kill("daemon", "")
        page = _until_over(scene, name)
        assert scene.host.restarts >= 1 + len(POINTS)
    assert {path.name for path in once.iterdir()} == set(POINTS)
    assert page["sweep"]["states"] == {"completed": 6}
    assert [run["name"] for run in page["runs"]] == [f"sums-{number}" for number in range(1, 7)]
    assert [(run["step"], run["total_steps"]) for run in page["runs"]] == [(30, 30)] * 6
    assert [cell["settings"]["algorithm.optimizer.lr"] for cell in page["cells"]] == ["1e-6", "3e-6", "1e-5"]
    for cell in page["cells"]:
        assert cell["figures"]["held-out/held"]["runs"] == 2
        assert cell["figures"]["reward_mean"]["runs"] == 2
    assert len(scene.events(SweepSubmitted)) == 1
    assert scene.events(SweepRefused) == []
    submitted = [event.spec.name for event in scene.events(ExperimentSubmitted)]
    assert sorted(submitted) == [f"sums-{number}" for number in range(1, 7)], "none was submitted twice"
    assert len(scene.events(ExperimentAccepted)) == 6
    executed = Counter(experiment for experiment, _ in scene.events_by_experiment(StepCompleted))
    assert all(count >= 30 for count in executed.values())
    assert len(executed) == 6
    specs = {event.spec.name: event.spec for event in scene.events(ExperimentSubmitted)}
    assert [specs[f"sums-{number}"].seed for number in range(1, 7)] == [42, 43, 42, 43, 42, 43]
    assert {specs[f"sums-{number}"].stages[0].algorithm.optimizer.lr for number in (3, 4)} == {3e-6}
    assert all(spec.labels == {"sweep": name} for spec in specs.values())
    report = scene.verified()
    assert report.clean, report.findings


@pytest.mark.e2e
@pytest.mark.slow
def test_a_run_that_is_cancelled_or_refused_does_not_hold_up_the_others(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write()
    with scene.host:
        wrong = scene.rftd("sweep", "exp.yaml", "-s", "buffer.explorer_input.taskset.path=./train.jsonl,./none.jsonl")
        assert wrong.status == 2, wrong
        assert "run 2 of the sweep" in wrong.err
        assert "none.jsonl" in wrong.err
        assert json.loads(scene.rftd("sweeps", "ls", "--json").out)["items"] == []
        assert json.loads(scene.rftd("ls", "--json").out)["items"] == [], "none of its runs was begun"
        long = ("-s", "buffer.total_steps=100000")
        name = _swept(scene, "--seeds", "3", "--at-once", "1", *long)
        scene.until_step(f"{name}-1", 1)
        assert scene.rftd("cancel", f"{name}-1").status == 0
        scene.until_step(f"{name}-2", 1)
        assert scene.rftd("sweeps", "cancel", name, "--reason", "enough").status == 0
        page = _until_over(scene, name)
        again = scene.rftd("sweeps", "cancel", name)
        assert again.status == 5, again
        assert scene.rftd("sweeps", "show", name, "--wait").status == 1
    assert [run["state"] for run in page["runs"]] == ["cancelled", "cancelled", "skipped"]
    assert "enough" in page["runs"][1]["reason"]
    assert len(scene.events(ExperimentSubmitted)) == 2
    assert scene.verified().clean


@pytest.mark.e2e
@pytest.mark.slow
def test_a_halving_survives_kills_of_the_daemon_and_is_decided_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "--slots", "4")
    scene.write()
    with scene.host:
        wrong = scene.rftd("sweep", "exp.yaml", "-s", RATES, "-s", "stages=[]", "--halve-at", "15")
        assert wrong.status == 2, wrong
        assert "held is not evaluated at version 15" in wrong.err
        name = _swept(
            scene,
            "-s",
            "algorithm.optimizer.lr=1e-6,2e-6,3e-6,4e-6",
            "-s",
            "explorer.eval_interval=10",
            "--halve-at",
            "10,20",
            "--at-once",
            "4",
        )
        for number in range(1, 5):
            poll(lambda number=number: _state(scene, f"{name}-{number}") in ("paused", "running", "completed"))
            scene.kill("daemon", "")
            scene.host.tend()
        page = _until_over(scene, name)
    assert page["sweep"]["states"] == {"completed": 1, "stopped": 3}
    halvings = scene.events(SweepHalved)
    assert [(event.version, len(event.stopped)) for event in halvings] == [(10, 2), (20, 1)]
    steps = {run["state"]: run["step"] for run in page["runs"]}
    assert steps["completed"] == 30
    scored = {event.version for event in scene.events(EvalCompleted)}
    assert {10, 20, 30} <= scored
    assert len(scene.events(ExperimentSubmitted)) == 4
    assert scene.verified().clean
