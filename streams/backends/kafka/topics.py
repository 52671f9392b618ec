"""The topics of a log: made from the one table of streams, and compared with it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from aiokafka import errors as kafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from rftd.ops import limits
from rftd.ops.errors import ConfigError, ConflictError, UnreachableError
from rftd.streams.backends.kafka.connect import REQUEST_TIMEOUT_S, arguments, check_cluster, translate
from rftd.streams.backends.kafka.settings import KafkaSettings
from rftd.streams.topics import TOPICS, Topic

MESSAGE_SIZE_BYTES: Final = limits.RECORD_SIZE_BYTES + 64 * 1024
"""A topic's max.message.bytes: the largest record, its headers and its batch's."""
POLL_S: Final = 0.02
_EXISTS: Final = 36
_NO_METADATA: Final = (3, 5)  # not yet known everywhere, or without a leader yet
_FOREVER: Final = "-1"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing in which a topic is not what the table of streams says."""

    topic: str
    setting: str
    found: str
    expected: str
    fatal: bool
    """True if the log must not be opened."""
    fix: str


def configs_of(topic: Topic) -> dict[str, str]:
    """The settings of a topic that we create."""
    retention = _FOREVER if topic.retention_s is None else str(int(topic.retention_s * 1000))
    return {
        "cleanup.policy": "delete",
        "retention.ms": retention,
        "retention.bytes": _FOREVER,
        "max.message.bytes": str(MESSAGE_SIZE_BYTES),
        "compression.type": "producer",
    }


async def ensure_topics(settings: KafkaSettings) -> None:
    """Creates the topics that are missing; returns once all have leaders.

    Raises ConflictError for one that differs fatally (number of partitions, compaction, retention of truth), and the
    errors of `rftd.streams.backends.kafka.connect`.
    """
    admin = await _start(settings)
    try:
        async with asyncio.timeout(6 * REQUEST_TIMEOUT_S):
            found = await _describe(admin, settings)
            missing = [topic for topic in TOPICS.values() if settings.prefix + topic.name not in found]
            if missing:
                await _create(admin, settings, missing)
            while len(found) < len(TOPICS):  # creation is known to every broker a little later
                await asyncio.sleep(POLL_S)
                found = await _describe(admin, settings)
            differences = await _differences(admin, settings, found)
    except TimeoutError as error:
        raise UnreachableError(
            "the topics have no leaders yet", where=f"Kafka at {settings.bootstrap}", fix="see the brokers' logs"
        ) from error
    except (kafka.KafkaError, OSError) as error:
        raise translate(error, settings) from error
    finally:
        await admin.close()
    for difference in differences:
        if difference.fatal:
            raise ConflictError(
                f"{difference.setting} of {difference.topic} is {difference.found}, not {difference.expected}",
                where=f"Kafka at {settings.bootstrap}",
                fix=difference.fix,
            )


async def topic_differences(settings: KafkaSettings) -> list[Difference]:
    """Everything in which the cluster's topics are not what the table says; empty if all is well."""
    admin = await _start(settings)
    try:
        async with asyncio.timeout(3 * REQUEST_TIMEOUT_S):
            return await _differences(admin, settings, await _describe(admin, settings))
    except (kafka.KafkaError, OSError, TimeoutError) as error:
        raise translate(error, settings) from error
    finally:
        await admin.close()


async def delete_topics(settings: KafkaSettings) -> None:
    """Removes the log and all it holds. For tests and for `rftd stack`."""
    admin = await _start(settings)
    try:
        await admin.delete_topics([settings.prefix + name for name in TOPICS])
    except (kafka.KafkaError, OSError, TimeoutError) as error:
        raise translate(error, settings) from error
    finally:
        await admin.close()


async def _start(settings: KafkaSettings) -> AIOKafkaAdminClient:
    await check_cluster(settings)
    admin = AIOKafkaAdminClient(**arguments(settings))
    try:
        await admin.start()
    except (kafka.KafkaError, OSError, TimeoutError) as error:
        await admin.close()
        raise translate(error, settings) from error
    return admin


async def _describe(admin: AIOKafkaAdminClient, settings: KafkaSettings) -> dict[str, int]:
    """The partitions of each topic of ours that exists and has leaders."""
    names = [settings.prefix + name for name in TOPICS]
    found: dict[str, int] = {}
    for answer in await admin.describe_topics(names):
        if answer["error_code"] == 0 and all(part["error_code"] == 0 for part in answer["partitions"]):
            found[answer["topic"]] = len(answer["partitions"])
        elif answer["error_code"] not in (0, *_NO_METADATA):
            raise kafka.for_code(answer["error_code"])(answer["topic"])
    return found


async def _create(admin: AIOKafkaAdminClient, settings: KafkaSettings, missing: list[Topic]) -> None:
    made = [
        NewTopic(settings.prefix + topic.name, topic.partitions, settings.replication, topic_configs=configs_of(topic))
        for topic in missing
    ]
    answer = await admin.create_topics(made)  # it does not raise: every topic has its own outcome
    for name, code, *rest in answer.topic_errors:
        if code not in (0, _EXISTS):
            reason = (rest[0] if rest else None) or kafka.for_code(code).__name__
            raise ConfigError(
                f"the topic {name} is missing and cannot be created: {reason}",
                where=f"Kafka at {settings.bootstrap}",
                fix="let an administrator create it, see `rftd doctor`; with fewer brokers lower replication=",
            )


async def _differences(admin: AIOKafkaAdminClient, settings: KafkaSettings, found: dict[str, int]) -> list[Difference]:
    configs = await _configs(admin, list(found))
    differences: list[Difference] = []
    for topic in TOPICS.values():
        name = settings.prefix + topic.name
        if name not in found:
            differences.append(
                Difference(
                    topic=name,
                    setting="existence",
                    found="missing",
                    expected="there",
                    fatal=False,
                    fix="start `rftd serve`: it creates missing topics",
                )
            )
            continue
        if found[name] != topic.partitions:
            differences.append(
                Difference(
                    topic=name,
                    setting="partitions",
                    found=str(found[name]),
                    expected=str(topic.partitions),
                    fatal=True,
                    fix="use another prefix=: the number of partitions of a stream never changes in place",
                )
            )
        differences += _compare(name, topic, configs.get(name, {}))
    return differences


def _compare(name: str, topic: Topic, found: dict[str, str]) -> list[Difference]:
    differences = []
    truth = topic.retention_s is None
    for setting, expected in configs_of(topic).items():
        value = found.get(setting)
        if value is None or value == expected:
            continue
        if setting == "max.message.bytes" and int(value) >= int(expected):
            continue
        fatal = (setting == "cleanup.policy" and "compact" in value) or (
            setting in ("retention.ms", "retention.bytes") and truth
        )
        differences.append(
            Difference(
                topic=name,
                setting=setting,
                found=value,
                expected=expected,
                fatal=fatal,
                fix=f"kafka-configs.sh --alter --topic {name} --add-config {setting}={expected}",
            )
        )
    return differences


async def _configs(admin: AIOKafkaAdminClient, names: list[str]) -> dict[str, dict[str, str]]:
    """The settings of each topic, as far as the user may read them."""
    answers: list[Any] = await admin.describe_configs(
        [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    )
    return {
        name: {entry[0]: entry[1] for entry in entries if entry[1] is not None}
        for answer in answers
        for code, _message, _kind, name, entries in answer.resources
        if code == 0
    }
