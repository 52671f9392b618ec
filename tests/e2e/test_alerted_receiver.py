"""A daemon with a receiver of alerts: each change comes once with its figures, over refusals and over restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.daemon.stranger import Said, Stranger, stranger_at_work
from synthetic.until import poll

pytestmark = pytest.mark.e2e

ENDLESS = ("stages=[]", "buffer.total_steps=100000", "explorer.eval_interval=1000000")
WRONG = (
    *("stages=[]", "buffer.total_steps=400", "explorer.eval_interval=1000000", "trainer.max_idle_steps=3"),
    "explorer.rollout_model.extra_engine_args={skill: 0, gain: 0}",
)
"""No answer is ever right, so nothing can be learnt."""


@pytest.fixture
def receiver() -> Iterator[Stranger]:
    with stranger_at_work() as at_work:
        at_work.answers = [Said(200)]
        yield at_work


def told(receiver: Stranger) -> list[dict[str, Any]]:
    """The alerts taken, each with an id of its own, in order."""
    alerts = [json.loads(body) for body in receiver.bodies]
    assert len({alert["id"] for alert in alerts}) == len(alerts), "an alert came twice"
    return alerts


def kinds(receiver: Stranger, name: str) -> list[str]:
    return [alert["kind"] for alert in told(receiver) if alert["experiment"] and alert["experiment"]["name"] == name]


def test_ends_failures_and_stalls_come_once_with_their_figures(tmp_path: Path, receiver: Stranger) -> None:
    receiver.answers = [Said(500), Said(503), Said(200)]
    scene = Scene(tmp_path, "--alerts-to", f"{receiver.url}/hook", "--stalled-after", "1s")
    with scene.host:
        ended = scene.submit(EXPERIMENT, *SHORT, "name=ended")
        scene.until_ended(ended)
        poll(lambda: kinds(receiver, ended) == ["completed"])
        refused = [headers for method, _, headers in receiver.asked if method == "POST"]
        assert len({headers["idempotency-key"] for headers in refused[:3]}) == 1, "one alert, sent until it was taken"
        [alert] = told(receiver)
        assert alert["text"] == "ended completed after 6 steps"
        assert [step["step"] for step in alert["steps"]] == [2, 3, 4, 5, 6]
        assert alert["steps"][-1]["metrics"]
        stalled = scene.submit(EXPERIMENT, *ENDLESS, "name=stalled")
        scene.until_step(stalled, 2)
        assert scene.rftd("pause", stalled, "--reason", "lunch").status == 0
        poll(lambda: kinds(receiver, stalled) == ["stalled"])
        assert "lunch" in told(receiver)[-1]["text"]
        assert told(receiver)[-1]["waits"]
        assert scene.rftd("cancel", stalled, "--wait").status == 0
    report = scene.verified()
    assert report.clean, report.findings


def test_a_lost_signal_and_a_failure_are_told_with_the_reason(tmp_path: Path, receiver: Stranger) -> None:
    (tmp_path / "wrong.py").write_text('def wrong(response, truth):\n    raise ValueError("the tool is away")\n')
    scene = Scene(tmp_path, "--alerts-to", receiver.url)
    with scene.host:
        lost = scene.submit(EXPERIMENT, *WRONG, "name=lost")
        scene.until_state(lost, "paused")
        poll(lambda: kinds(receiver, lost) == ["signal_lost"])
        assert "lost lost its learning signal at step" in told(receiver)[-1]["text"]
        assert told(receiver)[-1]["signal"]["cause"] == "rewards_equal"
        assert scene.rftd("cancel", lost).status == 0
        reward = "buffer.explorer_input.taskset.default_reward_fn_type=wrong.py:wrong"
        failing = scene.submit(EXPERIMENT, *SHORT, reward, "name=failing")
        assert scene.until_ended(failing).experiment.summary.state == "failed"
        poll(lambda: kinds(receiver, failing)[-1:] == ["failed"])
        assert "the tool is away" in told(receiver)[-1]["text"]


def test_alerts_not_taken_and_ends_not_seen_survive_a_killed_daemon(tmp_path: Path, receiver: Stranger) -> None:
    receiver.answers = [Said(500)]
    scene = Scene(tmp_path, "--alerts-to", f"{receiver.url}/hook")
    with scene.host:
        name = scene.submit(EXPERIMENT, *SHORT, "name=kept")
        scene.until_ended(name)
        poll(lambda: any(method == "POST" for method, _, _ in receiver.asked))
        poll(lambda: b"completed" in (scene.data.root / "alerts.json").read_bytes())
        assert f"{receiver.url}/hook".encode() not in (scene.data.root / "alerts.json").read_bytes()
        assert scene.kill("daemon", name)
        receiver.answers = [Said(200)]
        poll(lambda: scene.host.tend() or kinds(receiver, name) == ["completed"])
        other = scene.submit(EXPERIMENT, *SHORT, "name=other")
        scene.until_ended(other)
        poll(lambda: kinds(receiver, other) == ["completed"])
        assert kinds(receiver, name) == ["completed"]
    assert len(told(receiver)) == 2
