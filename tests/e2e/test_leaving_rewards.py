"""Rewards that leave instead of answering: on one row they cost that row alone, on every row the run fails."""

from __future__ import annotations

import json

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene

from rftd.daemon.http.views.experiments import ExperimentPage

pytestmark = pytest.mark.e2e
TASKSET = "buffer.explorer_input.taskset"
RAISED = [
    *(("leaves", way) for way in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "CancelledError")),
    *(("leaves_beside", way) for way in ("SystemExit", "KeyboardInterrupt")),
]
ENDED = [("_exit", "exit status 42"), ("SIGKILL", "its process was killed by signal 9")]


def ended(scene: Scene, reward: str, way: str, *, everywhere: bool = False) -> ExperimentPage:
    """The page of a run whose reward leaves in this way, with all of its nine rows, or only the first, to leave on."""
    rows = scene.folder / "nine.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{a}+{a}=", "answer": str(2 * a)}) + "\n" for a in range(9)))
    name = f"{reward}_{way}_{'everywhere' if everywhere else 'once'}"
    overrides = (
        f"name={name}",
        "buffer.total_steps=2",
        "explorer.max_retry_times=0",
        f"{TASKSET}.path={rows}",
        f"{TASKSET}.max_retry_times=0",
        f"{TASKSET}.default_reward_fn_type={reward}",
        f"{TASKSET}.reward_fn_args={{way: {way}, everywhere: {json.dumps(everywhere)}}}",
    )
    scene.submit(EXPERIMENT, *SHORT, *overrides)
    return scene.until_ended(name)


@pytest.mark.parametrize(("reward", "way"), RAISED)
def test_what_it_raises_costs_its_row_alone(shared: Scene, reward: str, way: str) -> None:
    page = ended(shared, reward, way)
    assert page.experiment.summary.state == "completed", page.experiment.summary.reason
    assert (page.experiment.books.planned, page.experiment.books.failed_rollouts) == (2 * 4 * 4, 4)
    assert [worker.state for worker in page.workers if worker.state == "lost"] == []
    name = page.experiment.summary.name
    [letter] = json.loads(shared.rftd("dlq", "ls", "--experiment", name, "-o", "json").out)["items"]
    assert (letter["task"], letter["code"]) == (f"{name}/task/0.0", "RFTD-WRK-002")
    assert way in letter["reason"], letter


@pytest.mark.parametrize(("reward", "way"), RAISED)
def test_a_run_whose_every_reward_raises_fails_with_the_cause(shared: Scene, reward: str, way: str) -> None:
    summary = ended(shared, reward, way, everywhere=True).experiment.summary
    assert (summary.state, summary.code) == ("failed", "RFTD-WRK-002"), summary
    assert way in (summary.reason or ""), summary


@pytest.mark.parametrize(("way", "cause"), ENDED)
def test_the_end_of_its_process_costs_its_row_alone(shared: Scene, way: str, cause: str) -> None:
    page = ended(shared, "leaves", way)
    assert page.experiment.summary.state == "completed", page.experiment.summary.reason
    assert (page.experiment.books.planned, page.experiment.books.failed_rollouts) == (2 * 4 * 4, 4)
    name = page.experiment.summary.name
    [letter] = json.loads(shared.rftd("dlq", "ls", "--experiment", name, "-o", "json").out)["items"]
    assert (letter["task"], letter["code"]) == (f"{name}/task/0.0", "RFTD-WRK-007")
    assert cause in letter["reason"], letter


@pytest.mark.parametrize(("way", "cause"), ENDED)
def test_a_run_whose_every_reward_ends_its_process_fails_with_the_cause(shared: Scene, way: str, cause: str) -> None:
    summary = ended(shared, "leaves", way, everywhere=True).experiment.summary
    assert summary.state == "failed", summary
    assert cause in (summary.reason or ""), summary
