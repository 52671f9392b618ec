"""A task that ends the process of whoever runs it costs itself, and no other task anything."""

from __future__ import annotations

import json

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene

pytestmark = pytest.mark.e2e
TASKSET = "buffer.explorer_input.taskset"


def test_it_is_isolated_and_named(shared: Scene) -> None:
    rows = shared.folder / "nine.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{a}+{a}=", "answer": str(2 * a)}) + "\n" for a in range(9)))
    overrides = (f"{TASKSET}.path={rows}", f"{TASKSET}.default_workflow_type=deadly", "buffer.total_steps=2")
    overrides += (f"{TASKSET}.max_retry_times=0",)  # so one death alone is enough
    name = shared.submit(EXPERIMENT, "name=deadly", *SHORT, *overrides)
    page = shared.until_ended(name)
    assert page.experiment.summary.state == "completed", page.experiment.summary.reason
    assert page.experiment.books.planned == 2 * 4 * 4, "each of the other eight tasks, once"
    assert page.experiment.books.failed_rollouts == 4
    lost = [worker for worker in page.workers if worker.state == "lost"]
    assert len(lost) == 3, "two with others, one alone"

    listed = json.loads(shared.rftd("dlq", "ls", "--experiment", name, "-o", "json").out)
    [letter] = listed["items"]
    assert (letter["task"], letter["code"], letter["attempts"]) == (f"{name}/task/0.0", "RFTD-WRK-007", 3)
    assert "each time that it ran nothing else (1), and 2 times before" in letter["reason"]
    assert "exit status 42" in letter["reason"]
    tries = json.loads(shared.rftd("dlq", "show", letter["task"], "-o", "json").out)["tries"]
    assert [each["ended"].partition(":")[0] for each in tries] == [
        *("its worker left", "its worker left", "its worker left, with nothing else to do")
    ]
    planned = json.loads(shared.rftd("experiences", "ls", name, "--state", "planned", "-n", "100", "-o", "json").out)
    assert len({item["group"] for item in planned["items"]}) == 8

    late = shared.rftd("dlq", "retry", letter["id"])
    assert late.status == 5
    assert "its experiment is completed" in late.err
    assert shared.rftd("dlq", "retry", letter["id"], "--dry-run").err == late.err
    dropped = shared.rftd("dlq", "drop", letter["id"], "--reason", "it crashes the parser", "--dry-run")
    assert dropped.out == (
        f"{letter['id']}: the task leaves the list of open dead letters; it stays in the log\nnothing was recorded\n"
    )
    assert len(json.loads(shared.rftd("dlq", "ls", "-o", "json").out)["items"]) == 1
    assert shared.rftd("dlq", "drop", letter["id"], "--reason", "it crashes the parser").status == 0
    assert json.loads(shared.rftd("dlq", "ls", "-o", "json").out)["items"] == []
    report = shared.verified()
    assert report.clean, report.findings
