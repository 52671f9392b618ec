"""The topics of a log: created from the one table of streams, and compared with the table."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from aiokafka import errors as kafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from rftd.ops import limits
from rftd.ops.errors import ConfigError, ConflictError, UnreachableError
from rftd.streams.kafka.connect import REQUEST_TIMEOUT_S, arguments, check_cluster, translate
from rftd.streams.kafka.rights import Allowed, allowed_operations
from rftd.streams.kafka.settings import KafkaSettings
from rftd.streams.log.topics import TOPICS, Topic

T = TypeVar("T")
"""Result of a call to the cluster."""

_logger = logging.getLogger("rftd.kafka")
"""Logger of the Kafka backend."""
MESSAGE_SIZE_BYTES: Final = limits.RECORD_SIZE_BYTES + 64 * 1024
"""A topic's max.message.bytes: the largest record with its headers, plus its batch's."""
MIN_INSYNC: Final = "min.insync.replicas"
"""A topic's setting: number of replicas that must store an acknowledged record."""
TIMESTAMP_TYPE: Final = "message.timestamp.type"
"""A topic's setting: the source of a record's time."""
BROKER_TIME: Final = "LogAppendTime"
"""The value of `TIMESTAMP_TYPE` for times given by the broker."""
POLL_S: Final = 0.02
"""Pause between two looks for a created topic."""
MAX_REQUESTS_TO_DEAD_BROKERS: Final = 50
"""Maximum number of consecutive requests to brokers that the cluster still lists, but that are dead."""
_EXISTS: Final = 36
"""Kafka's number of the error for an existing topic."""
_REPLICA_NOT_AVAILABLE: Final = 9
"""Kafka's number of the error for an unavailable replica."""
_NO_METADATA: Final = (3, 5)  # not yet known everywhere, or without a leader yet
"""Kafka's numbers of the errors for a topic not known everywhere yet, and for one without a leader yet."""
_DELETION_S: Final = 60.0
"""Maximum seconds until the brokers have deleted all topics."""
_DELETION_POLL_INTERVAL_S: Final = 0.05
"""Seconds between two looks at the topics left."""
_FOREVER: Final = "-1"
"""The value of a retention without a limit."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of a topic that differs from the table of streams."""

    topic: str
    """Name of the topic."""
    setting: str
    """Name of the setting."""
    found: str
    """Value of the setting on the cluster."""
    expected: str
    """Value by the table of streams."""
    fatal: bool
    """True if the log must not be opened with this setting."""
    fix: str
    """How to remove the difference."""

    @property
    def what(self) -> str:
        """The difference as text for people."""
        return f"{self.setting} of {self.topic} is {self.found}, not {self.expected}"


class _TopicState(NamedTuple):
    """A topic as it exists on the cluster."""

    partitions: int
    """Number of partitions."""
    replicas: int
    """Copies of the partition with the fewest."""


def configs_of(topic: Topic, replicas: int) -> dict[str, str]:
    """Returns the settings for creating a topic with `replicas` copies.

    Acknowledged records are on at least two copies, if there are two: `acks=all` alone waits for the copies in sync,
    possibly the leader alone.
    """
    retention = _FOREVER if topic.retention_s is None else str(int(topic.retention_s * 1000))
    return {
        # Never "compact": it keeps the last record of each key, and the log is every record.
        "cleanup.policy": "delete",
        # Kafka's default of a week would delete the truth of any longer experiment.
        "retention.ms": retention,
        "retention.bytes": _FOREVER,
        "max.message.bytes": str(MESSAGE_SIZE_BYTES),
        "compression.type": "producer",  # batches stay as sent: the broker need not pack them anew
        # By default the broker refuses a writer whose clock is an hour ahead, and deletes by the writers' clocks. No
        # reader uses this time: an event's time is in its head.
        TIMESTAMP_TYPE: BROKER_TIME,
        MIN_INSYNC: str(min(2, replicas)),
    }


async def ensure_topics(settings: KafkaSettings) -> None:
    """Creates the missing topics; returns once all have leaders.

    Raises ConflictError for a fatal difference (number of partitions, compaction, retention of truth), ConfigError for
    a topic that cannot be created, and the errors of `rftd.streams.kafka.connect`.
    """
    admin = await _start(settings)
    try:
        async with asyncio.timeout(6 * REQUEST_TIMEOUT_S):
            described = await _describe(admin, settings)
            missing = [topic for topic in TOPICS.values() if settings.prefix + topic.name not in described]
            if missing:
                await _create(admin, settings, missing)
            # Creation is known to every broker a little later; `ensure_topics` may also race another daemon's.
            while len(described) < len(TOPICS):
                await asyncio.sleep(POLL_S)
                described = await _describe(admin, settings)
            differences = await _differences(admin, settings, described)
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
            raise ConflictError(difference.what, where=f"Kafka at {settings.bootstrap}", fix=difference.fix)
        if difference.setting == MIN_INSYNC:  # the log is usable, with weaker guarantees than promised
            _logger.warning("%s; fix: %s", difference.what, difference.fix)


async def topic_differences(settings: KafkaSettings) -> list[Difference]:
    """Returns all differences between the cluster's topics and the table; empty if there are none."""
    admin = await _start(settings)
    try:
        async with asyncio.timeout(3 * REQUEST_TIMEOUT_S):
            return await _differences(admin, settings, await _describe(admin, settings))
    except (kafka.KafkaError, OSError, TimeoutError) as error:
        raise translate(error, settings) from error
    finally:
        await admin.close()


async def settings_of(settings: KafkaSettings, name: str) -> dict[str, str]:
    """Returns the settings of one topic, with the cluster's name `name`; empty if the user may not read them."""
    admin = await _start(settings)
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return (await _configs(admin, [name])).get(name, {})
    except (kafka.KafkaError, OSError, TimeoutError) as error:
        raise translate(error, settings) from error
    finally:
        await admin.close()


async def rights_of_user(settings: KafkaSettings) -> Allowed:
    """Returns the user's rights on each topic of the log; empty if the broker does not report them, or is too old."""
    admin = await _start(settings)
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return await _from_live_broker(lambda: allowed_operations(admin, settings.prefix))
    except NotImplementedError:
        return {}
    except (kafka.KafkaError, OSError, TimeoutError) as error:
        raise translate(error, settings) from error
    finally:
        await admin.close()


async def log_id(settings: KafkaSettings) -> str:
    """Returns the id of the cluster with the prefix of the log's topics; empty if the cluster has no id."""
    admin = await _start(settings)
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            cluster = (await _from_live_broker(admin.describe_cluster)).get("cluster_id")
    except (kafka.KafkaError, OSError, TimeoutError) as error:
        raise translate(error, settings) from error
    finally:
        await admin.close()
    return f"{cluster}/{settings.prefix}" if cluster else ""


async def delete_topics(settings: KafkaSettings) -> None:
    """Deletes the log's topics with all records, and waits until the brokers name them no more; for tests and
    benchmarks only.
    """
    admin = await _start(settings)
    try:
        await admin.delete_topics([settings.prefix + name for name in TOPICS])
        async with asyncio.timeout(_DELETION_S):
            while await _describe(admin, settings):  # noqa: ASYNC110 - brokers announce nothing
                await asyncio.sleep(_DELETION_POLL_INTERVAL_S)
    except (kafka.KafkaError, OSError, TimeoutError) as error:
        raise translate(error, settings) from error
    finally:
        await admin.close()


async def _start(settings: KafkaSettings) -> AIOKafkaAdminClient:
    """Connects to the cluster for its administration."""
    await check_cluster(settings)
    admin = AIOKafkaAdminClient(**arguments(settings))
    try:
        await admin.start()
    except (kafka.KafkaError, OSError, TimeoutError) as error:
        await admin.close()
        raise translate(error, settings) from error
    return admin


async def _describe(admin: AIOKafkaAdminClient, settings: KafkaSettings) -> dict[str, _TopicState]:
    """Returns the log's existing topics with leaders."""
    names = [settings.prefix + name for name in TOPICS]
    described: dict[str, _TopicState] = {}
    for answer in await _from_live_broker(lambda: admin.describe_topics(names)):
        partition_states = answer["partitions"]
        if answer["error_code"] == 0 and all(
            partition_state["error_code"] in (0, _REPLICA_NOT_AVAILABLE) for partition_state in partition_states
        ):
            fewest = min((len(partition_state["replicas"]) for partition_state in partition_states), default=0)
            described[answer["topic"]] = _TopicState(len(partition_states), fewest)
        elif answer["error_code"] not in (0, *_NO_METADATA):
            raise kafka.for_code(answer["error_code"])(answer["topic"])
    return described


async def _create(admin: AIOKafkaAdminClient, settings: KafkaSettings, missing: list[Topic]) -> None:
    """Creates the missing topics, each with its settings."""
    new_topics = [
        NewTopic(
            settings.prefix + topic.name,
            topic.partitions,
            settings.replication,
            topic_configs=configs_of(topic, settings.replication),
        )
        for topic in missing
    ]
    answer = await admin.create_topics(new_topics)  # it does not raise: every topic has its own outcome
    for name, code, *details in answer.topic_errors:
        if code not in (0, _EXISTS):
            reason = (details[0] if details else None) or kafka.for_code(code).__name__
            raise ConfigError(
                f"the topic {name} is missing and cannot be created: {reason}",
                where=f"Kafka at {settings.bootstrap}",
                fix="let an administrator create it, see `rftd doctor`; with fewer brokers lower replication=",
            )


async def _differences(
    admin: AIOKafkaAdminClient, settings: KafkaSettings, described: dict[str, _TopicState]
) -> list[Difference]:
    """Compares the existing topics with the table of streams."""
    configs = await _configs(admin, list(described))
    differences: list[Difference] = []
    for topic in TOPICS.values():
        name = settings.prefix + topic.name
        if name not in described:
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
        if described[name].partitions != topic.partitions:
            differences.append(
                Difference(
                    topic=name,
                    setting="partitions",
                    found=str(described[name].partitions),
                    expected=str(topic.partitions),
                    fatal=True,
                    fix="use another prefix=: the number of partitions of a stream never changes in place",
                )
            )
        differences += _compare(name, topic, described[name].replicas, configs.get(name, {}))
    return differences


def _compare(name: str, topic: Topic, replicas: int, configs: dict[str, str]) -> list[Difference]:
    """Compares the settings of one topic with those by the table of streams."""
    differences = []
    truth = topic.retention_s is None
    for setting, expected in configs_of(topic, replicas).items():
        current_setting = configs.get(setting)
        if current_setting is None or current_setting == expected:
            continue
        if setting in ("max.message.bytes", MIN_INSYNC) and int(current_setting) >= int(expected):
            continue
        # Fatal differences delete truth, now or some day; any other can be fixed while the log is in use.
        fatal = (setting == "cleanup.policy" and "compact" in current_setting) or (
            setting in ("retention.ms", "retention.bytes") and truth
        )
        differences.append(
            Difference(
                topic=name,
                setting=setting,
                found=current_setting,
                expected=expected,
                fatal=fatal,
                fix=setting_command(name, setting, expected),
            )
        )
    return differences


def setting_command(name: str, setting: str, new_value: str) -> str:
    """Returns the shell command that sets a topic's setting to `new_value`."""
    return f"kafka-configs.sh --alter --topic {name} --add-config {setting}={new_value}"


async def _configs(admin: AIOKafkaAdminClient, names: list[str]) -> dict[str, dict[str, str]]:
    """Returns the settings of each topic, as far as the user may read them."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    answers: list[Any] = await _from_live_broker(lambda: admin.describe_configs(resources))
    return {
        name: {config_line[0]: config_line[1] for config_line in config_lines if config_line[1] is not None}
        for answer in answers
        for code, _message, _kind, name, config_lines in answer.resources
        if code == 0
    }


async def _from_live_broker(ask: Callable[[], Awaitable[T]]) -> T:
    """Returns a live broker's answer: aiokafka asks one of the brokers named last by the cluster, and only once."""
    for _ in range(MAX_REQUESTS_TO_DEAD_BROKERS):
        try:
            return await ask()
        except (kafka.NodeNotReadyError, kafka.KafkaConnectionError):
            await asyncio.sleep(POLL_S)
    return await ask()
