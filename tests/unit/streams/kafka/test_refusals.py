"""Too old a broker, and a cluster that forbids to create topics: clear errors with their fix."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rftd.ops.errors import ConfigError
from rftd.streams.kafka.connect import _check_version
from rftd.streams.kafka.settings import KafkaSettings
from rftd.streams.kafka.topics import _create, _describe, _differences
from rftd.streams.log.topics import TOPICS

SETTINGS = KafkaSettings(bootstrap="broker:9092", prefix="x.")


def test_a_broker_older_than_3_0_is_named() -> None:
    _check_version(SimpleNamespace(_versions={2: (0, 7)}), SETTINGS, "broker:9092")
    with pytest.raises(ConfigError, match=r"broker:9092 is older than Kafka 3\.0") as caught:
        _check_version(SimpleNamespace(_versions={2: (0, 6)}), SETTINGS, "broker:9092")
    assert caught.value.fix


class ForbiddingAdmin:
    """Answers as a cluster whose ACLs deny Create."""

    async def create_topics(self, wanted: list[Any]) -> Any:
        return SimpleNamespace(topic_errors=[(topic.name, 29, "Authorization failed.") for topic in wanted])


@pytest.mark.anyio
async def test_topics_that_may_not_be_created_are_named() -> None:
    with pytest.raises(ConfigError, match=r"x\.rftd\.experiments is missing and cannot be created") as caught:
        await _create(ForbiddingAdmin(), SETTINGS, list(TOPICS.values()))  # type: ignore[arg-type]
    assert "administrator" in (caught.value.fix or "")


class DescribedAdmin:
    """A cluster that holds every topic with so many copies, acknowledged from so many."""

    def __init__(self, replicas: int, min_insync: int) -> None:
        self.replicas, self.min_insync = replicas, min_insync
        self.made: list[Any] = []

    async def create_topics(self, wanted: list[Any]) -> Any:
        self.made += wanted
        return SimpleNamespace(topic_errors=[(topic.name, 0, None) for topic in wanted])

    async def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        part = {"error_code": 0, "replicas": list(range(self.replicas))}
        counts = {SETTINGS.prefix + topic.name: topic.partitions for topic in TOPICS.values()}
        return [{"error_code": 0, "topic": name, "partitions": [part] * counts[name]} for name in names]

    async def describe_configs(self, resources: list[Any]) -> list[Any]:
        entries = [("min.insync.replicas", str(self.min_insync))]
        return [SimpleNamespace(resources=[(0, None, 2, resource.name, entries) for resource in resources])]


@pytest.mark.anyio
@pytest.mark.parametrize(("replication", "acknowledged_from"), [(1, "1"), (2, "2"), (3, "2"), (5, "2")])
async def test_topics_acknowledge_from_two_copies_where_there_are_two(replication: int, acknowledged_from: str) -> None:
    admin = DescribedAdmin(0, 0)
    settings = KafkaSettings(bootstrap="broker:9092", prefix="x.", replication=replication)
    await _create(admin, settings, list(TOPICS.values()))  # type: ignore[arg-type]
    assert {topic.topic_configs["min.insync.replicas"] for topic in admin.made} == {acknowledged_from}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("replicas", "min_insync", "weak"), [(1, 1, False), (3, 1, True), (2, 1, True), (3, 2, False), (3, 3, False)]
)
async def test_topic_acknowledging_from_one_replica_is_a_finding_with_its_fix(
    replicas: int, min_insync: int, weak: bool
) -> None:
    admin: Any = DescribedAdmin(replicas, min_insync)
    found = await _differences(admin, SETTINGS, await _describe(admin, SETTINGS))
    assert len(found) == (len(TOPICS) if weak else 0), found
    for each in found:
        assert not each.fatal
        assert each.what.endswith("is 1, not 2")
        assert each.fix == f"kafka-configs.sh --alter --topic {each.topic} --add-config min.insync.replicas=2"
