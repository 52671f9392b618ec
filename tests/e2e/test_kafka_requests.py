"""Experiments as events from anywhere, on a real Kafka and a real daemon, which is killed meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from synthetic.daemon.scene import EXPERIMENT, QUEUE, Scene
from synthetic.until import poll

from rftd.daemon.config.loading import load_text
from rftd.streams.events import experiment as life
from rftd.streams.events.task import TasksAdded
from rftd.streams.kafka.settings import parse_kafka

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

Headers = Sequence[tuple[str, bytes]]
Sent = tuple[bytes | None, Headers]


@pytest.fixture
def kafka_scene(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """A real daemon with its log on Kafka and its tables in a file."""
    bootstrap = request.getfixturevalue("kafka_broker").bootstrap
    prefix = request.getfixturevalue("kafka_prefix")
    kafka = {"RFTD_KAFKA": f"kafka://{bootstrap}/?prefix={prefix}"}
    made = Scene(tmp_path, "--roots", str(tmp_path.resolve()), environ=kafka)
    with made.host:
        yield made


def asked(type: str, id: str, **attributes: Any) -> Sent:
    """A request in structured mode, as a producer that knows nothing of rftd sends it."""
    event = {"specversion": "1.0", "type": f"rftd.experiment.{type}", "source": "/ci", "id": id, **attributes}
    return json.dumps(event).encode(), [("content-type", b"application/cloudevents+json")]


def in_binary_mode(type: str, id: str, subject: str, data: bytes) -> Sent:
    attributes = {"specversion": "1.0", "type": f"rftd.experiment.{type}", "source": "/ci", "id": id}
    headers = [(f"ce_{name}", text.encode()) for name, text in {**attributes, "subject": subject}.items()]
    return data, [*headers, ("content-type", b"application/json")]


def produce(scene: Scene, sent: Sequence[Sent]) -> None:
    """All under one key, so that they stay in order; each in a transaction, as an exactly-once sink writes.

    What it takes back before is read by nobody, though it has its offsets, as the markers of transactions have.
    """
    assert scene.log_at is not None
    settings = parse_kafka(scene.log_at.text)
    topic = settings.prefix + "rftd.requests"

    async def send() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=settings.bootstrap, max_request_size=4_000_000, transactional_id=f"{topic}.sink"
        ) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"taken back", key=b"ci")
            await producer.abort_transaction()
            for value, headers in sent:
                async with producer.transaction():
                    await producer.send_and_wait(topic, value, key=b"ci", headers=list(headers))

    asyncio.run(send())


def test_a_producer_submits_pauses_resumes_and_cancels(kafka_scene: Scene) -> None:
    scene = kafka_scene
    file = EXPERIMENT.replace("./", f"{scene.folder}/").replace("total_steps: 60", "total_steps: 600")
    file = file.replace("model_path: fake", f"model_path: {scene.folder}/fake")
    submission = asked("submit", "1", datacontenttype="application/yaml", data=file)
    garbage: list[Sent] = [(b"\x00\xff garbage", ()), (None, ()), (b"x" * 1_500_000, ())]
    refused = [
        asked("submit", "old", specversion="0.3"),
        asked("explode", "unknown"),
        asked("submit", "broken", datacontenttype="application/yaml", data="a: [b"),
        asked("submit", "strange", datacontenttype="application/yaml", data=file + "\nnonsense: ${oc.env:HOME}\n"),
        asked("submit", "1", datacontenttype="application/yaml", data=file + "\nlabels: {other: body}\n"),
    ]
    produce(scene, [*garbage, submission, submission, *refused])
    # Anywhere between the first of them and the last: what is open is answered by the daemon that comes next.
    scene.kill("daemon", "")
    scene.host.tend()
    scene.until_state("sums", "running")
    produce(scene, [in_binary_mode("pause", "2", "sums", b'{"reason": "lunch"}'), submission])
    assert scene.until_state("sums", "paused").experiment.summary.reason == "lunch"
    produce(scene, [asked("resume", "3", subject="sums"), asked("pause", "4", subject="nobody")])
    scene.until_state("sums", "running")
    produce(scene, [asked("cancel", "5", subject="sums"), asked("cancel", "5", subject="sums")])
    scene.until_state("sums", "cancelled")
    produce(scene, [asked("pause", "6", subject="sums")])
    poll(lambda: len(scene.events(life.ExperimentRejected)) == len(refused) + 2)
    assert len(scene.events(life.ExperimentSubmitted)) == len(scene.events(life.ExperimentPaused)) == 1
    answers = Counter(each.request.id for each in scene.events(life.ExperimentRejected) if each.request is not None)
    assert answers == Counter(["old", "unknown", "broken", "strange", "1", "4", "6"])
    assert all(each.reason and each.code.startswith("RFTD-") for each in scene.events(life.ExperimentRejected))
    listed = json.loads(scene.rftd("ls", "--refused", "--json").out)["items"]
    assert Counter(each["id"] for each in listed) == answers
    # The same is told by the daemon's own log, through the daemon and, without one, from its folder.
    told = [json.loads(line) for line in scene.rftd("logs", "--daemon", "-n", "10000", "-o", "jsonl").out.splitlines()]
    lives = [each["event"] for each in told if each["event"].startswith("experiment.")]
    assert [name for name in lives if name.endswith(("paused", "resumed", "cancelled"))] == [
        "experiment.paused",
        "experiment.resumed",
        "experiment.cancelled",
    ]
    places = {each.request.place for each in scene.events(life.ExperimentRejected) if each.request is not None}
    assert places <= {each["fields"]["position"] for each in told if each["event"] == "request.refused"}
    scene.host.stop()
    alone = scene.rftd("logs", "--daemon", "--grep", "reason=lunch")
    assert (alone.status, alone.out.count("\n")) == (0, 1), alone
    report = scene.verified()
    assert report.clean, report.findings
    assert len(report.dead_letters) == len(garbage)


def test_a_producer_adds_tasks_to_a_queue_and_tells_their_end(kafka_scene: Scene) -> None:
    """Requests that come before the run is under way, or while the daemon is dead, wait; garbage is refused alone."""
    scene = kafka_scene
    overrides = (*QUEUE, f"model.model_path={scene.folder}/fake")
    file = load_text(EXPERIMENT, "test.yaml", overrides=overrides, environ={}, cwd=scene.folder)
    produce(scene, [asked("submit", "0", datacontenttype="application/json", data={"config": file.config})])
    name = "sums"
    tasks = [{"question": f"{number}+1=", "answer": str(number + 1)} for number in range(9)]
    first = asked("add_tasks", "1", subject=name, data={"tasks": tasks[:4]})
    keyless = asked("add_tasks", "2", subject=name, data={"tasks": [*tasks[:1], {"prompt": "2+2="}]})
    produce(scene, [first, first, keyless])
    poll(lambda: len(scene.events(TasksAdded)) == 1)
    scene.kill("daemon", "")
    produce(scene, [first, asked("add_tasks", "3", subject=name, data={"tasks": tasks[4:]})])
    produce(scene, [asked("end_tasks", "4", subject=name)])
    scene.host.tend()
    # Of nine tasks the third batch of four holds one.
    assert scene.until_ended(name).experiment.summary.step == 3
    assert [json.loads(text) for event in scene.events(TasksAdded) for text in event.tasks] == tasks
    refused = scene.events(life.ExperimentRejected)
    assert [rejected.request.id for rejected in refused if rejected.request is not None] == ["2"]
    assert "tasks[1]" in refused[0].reason
    assert scene.verified().clean
