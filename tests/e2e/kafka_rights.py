"""Each role under a Kafka user of its own, with the rights of docs/production.md and no others: `make test-kafka-acl`.

The broker's settings, users and rights are the page's lines. A whole run of daemon, explorer and trainer, submitted by
a producer, has to work with them; everything that the page's table does not grant has to be refused.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.docs.pages import prose_of
from synthetic.servers.secured_kafka import PAGE, SecuredKafka, secured_kafka, variable
from synthetic.until import poll

from rftd.streams.events import experiment as life
from rftd.streams.kafka.connect import arguments
from rftd.streams.kafka.settings import parse_kafka
from rftd.streams.kafka.topics import rights_of_user
from rftd.streams.log.topics import TOPICS

USERS = {"daemon": "rftd", "explorer": "rftd-explorer", "trainer": "rftd-trainer", "producer": "producer"}


@pytest.fixture(scope="module")
def broker(servers_folder: Path) -> Iterator[SecuredKafka]:
    folder = servers_folder / "secured"
    folder.mkdir()
    with secured_kafka(folder) as running, pytest.MonkeyPatch.context() as patch:
        for user, password in running.passwords.items():  # this process reads the log and plays each of them
            patch.setenv(variable(user), password)
        yield running


@contextmanager
def worker(scene: Scene, role: str) -> Iterator[None]:
    process = scene.spawn(role, "worker", role)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def ended_run(broker: SecuredKafka, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A run that a producer submitted, with every process under its own user; the daemon has drained."""
    scene, *others = (
        Scene(tmp_path_factory.mktemp(role), "--roots", "/", "--workers", "external", environ=broker.environ(user))
        for role, user in USERS.items()
        if role != "producer"
    )
    file = EXPERIMENT.replace("./", f"{scene.folder}/").replace("model_path: fake", f"model_path: {scene.folder}/fake")
    for key, value in (each.split("=") for each in SHORT[1:]):
        name = key.rpartition(".")[2]
        file = re.sub(rf"(?m)^(  {name}:).*$", rf"\1 {value}", file)
    file = file[: file.index("stages:")]
    event = {"specversion": "1.0", "type": "rftd.experiment.submit", "source": "/ci", "id": "1"}
    value = json.dumps({**event, "datacontenttype": "application/yaml", "data": file}).encode()
    with scene.host, ExitStack() as stack:
        for each, role in zip(others, ("explorer", "trainer"), strict=True):
            stack.enter_context(worker(each, role))
        assert written(broker, "producer", "rftd.requests", value)
        poll(lambda: bool(scene.events(life.ExperimentSubmitted)))
        assert scene.until_ended("sums").experiment.summary.state == "completed"
    report = scene.verified()
    assert report.clean, report.findings
    assert not report.dead_letters
    for each in (scene, *others):
        for log in each.folder.glob("*.log"):
            assert not any(password in log.read_text() for password in broker.passwords.values()), log
    return scene


def written(broker: SecuredKafka, user: str, topic: str, value: bytes) -> bool:
    """False if Kafka forbids the user to write there."""

    async def send() -> bool:
        async with AIOKafkaProducer(**arguments(parse_kafka(broker.url(user)))) as producer:
            try:
                await producer.send_and_wait(topic, value, key=b"ci")
            except kafka.TopicAuthorizationFailedError:
                return False
            return True

    return asyncio.run(send())


def granted() -> dict[str, dict[str, frozenset[str]]]:
    """The page's table: the rights of each user on each topic."""
    found: dict[str, dict[str, frozenset[str]]] = {user: {} for user in USERS.values()}
    for line in prose_of(PAGE).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and cells[0].strip("`") in TOPICS:
            for user, cell in zip(USERS.values(), cells[1:5], strict=True):
                rights = {word.strip().capitalize() for word in cell.split(",") if word.strip()}
                found[user][cells[0].strip("`")] = frozenset(rights)
    return found


def test_the_table_of_the_page_is_what_each_user_may(broker: SecuredKafka, ended_run: Scene) -> None:
    table = granted()
    for user in USERS.values():
        allowed = asyncio.run(rights_of_user(parse_kafka(broker.url(user))))
        told = {topic: rights & {"Read", "Write"} for topic, rights in allowed.items()}
        assert told == table[user], user
        for topic, rights in table[user].items():
            assert written(broker, user, topic, b"garbage") == ("Write" in rights), (user, topic)


def test_the_doctor_names_missing_rights(broker: SecuredKafka, ended_run: Scene) -> None:
    said = {user: doctor(ended_run, broker, user) for user in USERS.values()}
    assert "all that a daemon needs" in said["rftd"][1]
    assert (
        "enough for the role explorer; for a daemon, the user rftd-explorer lacks Write on" in said["rftd-explorer"][1]
    )
    assert "enough for the role trainer;" in said["rftd-trainer"][1]
    assert [said[user][0] for user in USERS.values()] == [0, 0, 0, 1]
    assert "the user producer lacks Describe, DescribeConfigs, Read, Write on rftd.experiments" in said["producer"][1]


def doctor(scene: Scene, broker: SecuredKafka, user: str, **environ: str) -> tuple[int, str]:
    done = scene.rftd("doctor", environ={"COLUMNS": "200", **broker.environ(user), **environ})
    return done.status, " ".join((done.out + done.err).split())


def test_wrong_logins_and_certificates_are_named(broker: SecuredKafka, tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    url = broker.url("rftd")
    elsewhere = url.replace("127.0.0.1", "localhost")
    for environ, *texts in (
        ({"PASSWORD_OF_RFTD": "wrong-secret"}, "refused the user 'rftd'"),
        ({"PASSWORD_OF_RFTD": ""}, "no password for the Kafka user 'rftd'", "PASSWORD_OF_RFTD"),
        ({"RFTD_KAFKA": url.replace("rftd@", "nobody@")}, "refused the user 'nobody'"),
        ({"RFTD_KAFKA": elsewhere}, "no TLS connection", "localhost"),
        ({"RFTD_KAFKA": re.sub("&ca_file=[^&]*", "", url)}, "no TLS connection", "certificate"),
    ):
        status, said = doctor(scene, broker, "rftd", **environ)
        assert status == 1, said
        assert all(text in said for text in texts), said
        variables = {**broker.environ("rftd"), **environ}
        read = scene.rftd("verify", "--kafka", variables["RFTD_KAFKA"], environ=variables)
        assert read.status == 2, read
        assert "RFTD-CFG-001" in read.err, read
        assert "Traceback" not in read.err
        assert "wrong-secret" not in said + read.out + read.err
