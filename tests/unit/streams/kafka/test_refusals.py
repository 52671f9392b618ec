"""Too old a broker, and a cluster that forbids to create topics: clear errors with their fix."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rftd.ops.errors import ConfigError
from rftd.streams.backends.kafka.connect import _check_version
from rftd.streams.backends.kafka.settings import KafkaSettings
from rftd.streams.backends.kafka.topics import _create
from rftd.streams.topics import TOPICS

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
