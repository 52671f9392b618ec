"""An experiment whose rows are drawn by rewards: its daemon is killed, and goes on with what was drawn."""

from __future__ import annotations

import json

import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.until import poll

from rftd.streams.events.task import TaskLeased, TasksDrawn

SELECTOR = (
    "{selector_type: difficulty_based, feature_keys: [weak, meta.strong], kwargs: {tau: 0.1, target_reward: 0.5}}"
)
DRAWN = (
    "stages=[]",
    "buffer.total_steps=30",
    "explorer.eval_interval=100000",
    "buffer.explorer_input.taskset.path=./columns.jsonl",
    f"buffer.explorer_input.taskset.data_selector={SELECTOR}",
)
ROWS = 40


def write_rows(scene: Scene, *, strong: object = 0.9) -> None:
    rows = [
        {"question": f"{row}+1=", "answer": str(row + 1), "weak": row / ROWS / 2, "meta": {"strong": strong}}
        for row in range(ROWS)
    ]
    (scene.folder / "columns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.e2e
def test_rows_that_were_drawn_are_each_leased_once_whoever_dies(embedded_scene: Scene) -> None:
    scene = embedded_scene
    write_rows(scene)
    name = scene.submit(EXPERIMENT, *DRAWN)
    for step in (2, 8, 14):
        scene.until_step(name, step)
        before = scene.host.restarts
        assert scene.kill("daemon", name)
        poll(lambda before=before: scene.host.tend() or scene.host.restarts > before)
    page = scene.until_ended(name)
    assert page.experiment.summary.state == "completed"
    verified = scene.rftd("verify", "--files")
    assert verified.status == 0, verified
    drawn: dict[int, int] = {}
    seen = []
    for draw in scene.events(TasksDrawn):
        if draw.first >= len(drawn):  # the first draw of a place stands
            drawn |= {draw.first + number: row for number, row in enumerate(draw.rows)}
            seen.append(draw.seen)
    leased = {event.sequence: event.row for event in scene.events(TaskLeased)}
    assert leased == {place: drawn[place] for place in leased}
    assert len(leased) >= 30 * 4
    assert seen == sorted(seen)
    assert seen[-1] > 60


@pytest.mark.e2e
def test_what_a_selector_cannot_use_is_refused_with_its_row(embedded_scene: Scene) -> None:
    scene = embedded_scene
    write_rows(scene, strong="much")
    path = scene.write(EXPERIMENT)
    options = [part for override in DRAWN for part in ("-s", override)]
    refused = scene.rftd("submit", str(path), *options)
    assert refused.status == 2
    assert "data_selector.feature_keys" in refused.err
    assert "row has \"much\" under 'meta.strong', where a number belongs" in refused.err
