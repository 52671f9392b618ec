"""Experiments that go wrong while they run: each fails with its reason, and the daemon goes on with the next."""

from __future__ import annotations

import json
import shutil

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene

from rftd.daemon.http.views.experiments import ExperimentPage

pytestmark = pytest.mark.e2e
TASKSET = "buffer.explorer_input.taskset"


def failed(shared: Scene, name: str, *overrides: str, text: str = EXPERIMENT) -> tuple[str, str]:
    """(code, reason) of how the experiment fails, the same on the page, at `submit --wait` and in `rftd get`."""
    shared.write(text)
    arguments = [word for each in (f"name={name}", *overrides) for word in ("-s", each)]
    said = shared.rftd("submit", "exp.yaml", "--wait", *arguments)
    summary = page_of(shared, name).experiment.summary
    assert (said.status, summary.state) == (1, "failed"), said
    assert summary.code
    assert summary.reason
    assert f"{name} failed  {summary.code}: {summary.reason}" in said.err
    shown = shared.rftd("get", name)
    assert shown.status == 0
    assert f"{summary.code}: {summary.reason[:60]}" in shown.out
    return summary.code, summary.reason


def page_of(shared: Scene, name: str) -> ExperimentPage:
    page = shared.page(name)
    assert page is not None
    assert page.experiment.books.balance == 0
    return page


def test_a_reward_that_raises(shared: Scene) -> None:
    code, reason = failed(shared, "raises", *SHORT, f"{TASKSET}.default_reward_fn_type=raises")
    assert code == "RFTD-WRK-002"
    assert "reward 'raises' raised ZeroDivisionError: no sandbox; at taskset 'sums' row " in reason
    assert page_of(shared, "raises").experiment.books.failed_rollouts >= 32


def test_a_workflow_that_never_returns(shared: Scene) -> None:
    code, reason = failed(
        shared,
        "waits",
        *SHORT,
        f"{TASKSET}.default_workflow_type=waits",
        "explorer.max_timeout=1",
        "explorer.max_retry_times=0",
    )
    assert code == "RFTD-WRK-003"
    assert "no rollout of 8 groups in a row succeeded" in reason
    assert "no result within 1 s; at taskset 'sums' row " in reason
    assert "raise explorer.max_timeout" in reason


def test_a_workflow_that_blocks_its_process(shared: Scene) -> None:
    """The row that it blocks on becomes a dead letter, and the others go on."""
    overrides = (f"{TASKSET}.default_workflow_type=loops", f"{TASKSET}.max_retry_times=0")
    name = shared.submit(EXPERIMENT, "name=loops", *SHORT, *overrides)
    assert shared.until_ended(name).experiment.summary.state == "completed"
    [letter] = json.loads(shared.rftd("dlq", "ls", "--experiment", name, "-o", "json").out)["items"]
    assert (letter["task"], letter["code"]) == ("loops/task/0.0", "RFTD-WRK-007")
    assert "no heartbeat for 3 s, so it was killed; it had tasks: a workflow or a reward" in letter["reason"]
    lost = [worker for worker in page_of(shared, "loops").workers if worker.state == "lost"]
    assert lost
    assert all("no heartbeat for 3 s" in (worker.reason or "") for worker in lost)


def test_a_loss_that_is_no_number(shared: Scene) -> None:
    code, reason = failed(shared, "nan", *SHORT, "trainer.engine_args={nan_at_step: 2, nan_steps: 9}")
    assert code == "RFTD-WRK-005"
    assert reason.startswith(
        "step 4 was skipped: the loss is nan; so were the 2 steps before it; the weights were not "
    )
    assert "; at batch " in reason
    assert reason.endswith("look at the batch's rewards and log-probabilities")
    assert page_of(shared, "nan").experiment.summary.step == 3


def test_a_model_that_goes_while_it_waits_in_the_queue(shared: Scene) -> None:
    from rftd.workers.models.tiny_model import make_tiny_model

    make_tiny_model(shared.folder / "model", seed=1)
    before = shared.submit(EXPERIMENT, "name=before", *SHORT)
    behind = shared.submit(
        EXPERIMENT,
        "name=behind",
        *SHORT,
        "model.model_path=./model",
        "trainer={trainer_type: torch}",
        "explorer.rollout_model={engine_type: torch, engine_num: 1}",
    )
    shutil.rmtree(shared.folder / "model")
    summary = shared.until_state(behind, "paused").experiment.summary
    assert summary.code == "refused"
    assert summary.reason
    assert "RFTD-DAT-001" in summary.reason
    # Whichever worker looks first says it in its own words.
    said = ("config.json is missing", "no model folder")
    assert any(each in summary.reason for each in said)
    assert str(shared.folder) in summary.reason
    assert page_of(shared, before).experiment.summary.state == "completed"
    assert shared.rftd("cancel", behind).status == 0
    assert shared.until_ended(behind).experiment.summary.state == "cancelled"


@pytest.mark.parametrize("stage", ["tasks", "warmup"])
def test_rows_that_change_under_a_run(shared: Scene, stage: str) -> None:
    """Nobody trains on rows that were not accepted, not even a worker that has the file open; until they are back."""
    rows = shared.folder / f"rows_{stage}.jsonl"
    rows.write_text((shared.folder / "train.jsonl").read_text())
    where = f"{TASKSET}.path" if stage == "tasks" else "stages.0.buffer.trainer_input.experience_buffer.path"
    longer = ("buffer.total_steps=60",) if stage == "tasks" else ("stages.0.buffer.total_steps=60",)
    name = shared.submit(EXPERIMENT, f"name=changed_{stage}", f"{where}={rows}", *longer)
    shared.until_step(name, 8)
    before = rows.read_text()
    with rows.open("r+") as file:  # in place: the same file, other bytes
        file.write('{"question": "0+9=", "answer": "8"}')
    summary = shared.until_state(name, "paused").experiment.summary
    assert summary.code == "refused", summary
    assert summary.reason, summary
    assert "RFTD-DAT-001" in summary.reason, summary
    assert str(rows) in summary.reason
    assert " digest " in summary.reason
    rows.write_text(before)
    assert shared.until_ended(name).experiment.summary.state == "completed"
    assert page_of(shared, name).experiment.books.balance == 0


def test_one_bad_row_among_many_costs_its_group(shared: Scene) -> None:
    """Of a small dataset all rows are looked at before it is accepted, of one of 20,000 every other."""
    rows = shared.folder / "one_bad.jsonl"
    good = (shared.folder / "train.jsonl").read_text().splitlines()
    lines = [good[number % len(good)] for number in range(20_000)]
    lines[1] = '{"answer": "no question"}'
    rows.write_text("\n".join(lines) + "\n")
    name = shared.submit(EXPERIMENT, "name=one_bad", *SHORT, f"{TASKSET}.path={rows}")
    page = shared.until_ended(name)
    assert page.experiment.summary.state == "completed", page.experiment.summary
    assert page.experiment.books.failed_rollouts >= 4


def test_the_daemon_is_none_the_worse(shared: Scene) -> None:
    name = shared.submit(EXPERIMENT, "name=after_all", *SHORT)
    assert shared.until_ended(name).experiment.summary.state == "completed"
    assert shared.host.restarts == 0
