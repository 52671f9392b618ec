"""An experiment whose tasks are added while it runs: by the command line, over HTTP; killed, and told the end."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from synthetic.daemon.scene import EXPERIMENT, QUEUE, Scene
from synthetic.until import poll

from rftd.daemon.http.views import tasks as view
from rftd.ops.errors import ConflictError
from rftd.streams.events.task import TaskLeased, TasksAdded


def task(number: int) -> dict[str, str]:
    return {"question": f"{number}+1=", "answer": str(number + 1)}


@pytest.mark.e2e
def test_tasks_that_are_added_are_each_tried_and_their_end_ends_the_run(embedded_scene: Scene) -> None:
    scene = embedded_scene
    name = scene.submit(EXPERIMENT, *QUEUE)
    poll(lambda: "more tasks: 0 were added" in scene.rftd("why", name).out)
    lines = "".join(json.dumps(task(number)) + "\n" for number in range(10))
    (scene.folder / "more.jsonl").write_text(lines)
    for _ in range(2):  # the second time adds nothing
        added = scene.rftd("tasks", "add", name, "more.jsonl")
        assert added.out == f"{name}  10 tasks added\n", added
    poll(lambda: "10 added, 10 tried; more may come" in scene.rftd("get", name).out)
    assert scene.kill("daemon", name)
    poll(lambda: scene.host.tend() or scene.host.restarts)
    with scene.client() as client:
        body = view.AddTasks(tasks=[task(10), task(11), task(12)])
        receipts = [client.send(view.add_tasks, body, name=name, request_id="again").value for _ in range(2)]
        assert receipts[0] == receipts[1]
    ended = scene.rftd("tasks", "end", name)
    assert ended.status == 0, ended
    page = scene.until_ended(name)
    assert page.experiment.summary.state == "completed"
    # Of 13 tasks the last batch of four holds one: it is filled with the first three.
    assert page.experiment.summary.step == 4
    with scene.client() as client:
        (queue,) = client.ask(view.queues, name=name).value.items
    assert queue == view.QueueState(stage=0, name="main", added=13, requests=2, tried=13, ended=True)
    verified = scene.rftd("verify", "--files")
    assert verified.status == 0, verified

    rows = [json.loads(text) for event in scene.events(TasksAdded) for text in event.tasks]
    assert rows == [task(number) for number in range(13)]
    groups = {event.group: (event.row, event.epoch) for event in scene.events(TaskLeased)}
    tried = Counter(row for row, epoch in groups.values() if epoch == 0)
    assert tried == Counter(range(13))
    with scene.client() as client, pytest.raises(ConflictError, match="completed"):
        client.send(view.add_tasks, view.AddTasks(tasks=[task(0)]), name=name)
