"""The topics of a log: made from the one table of streams, and compared with it."""

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

_logger = logging.getLogger("rftd.kafka")
MESSAGE_SIZE_BYTES: Final = limits.RECORD_SIZE_BYTES + 64 * 1024
"""A topic's max.message.bytes: the largest record, its headers and its batch's."""
MIN_INSYNC: Final = "min.insync.replicas"
TIMESTAMP_TYPE: Final = "message.timestamp.type"
BROKER_TIME: Final = "LogAppendTime"
POLL_S: Final = 0.02
DEAD_ASKED: Final = 50
"""The requests in a row that may meet a broker that is dead and still named by the cluster."""
_EXISTS: Final = 36
_REPLICA_AWAY: Final = 9
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

    @property
    def what(self) -> str:
        """The difference in words."""
        return f"{self.setting} of {self.topic} is {self.found}, not {self.expected}"


class _Found(NamedTuple):
    """A topic as the cluster has it."""

    partitions: int
    replicas: int
    """Copies of the partition that has the fewest."""


def configs_of(topic: Topic, replicas: int) -> dict[str, str]:
    """The settings of a topic that we create with so many copies.

    What is acknowledged is on two of them, wherever there are two: `acks=all` alone waits for those in sync, which may
    be the leader alone.
    """
    retention = _FOREVER if topic.retention_s is None else str(int(topic.retention_s * 1000))
    return {
        # Never "compact": it keeps the last record of each key, and the log is every one of them.
        "cleanup.policy": "delete",
        # Kafka's default of a week would delete the truth of any longer experiment.
        "retention.ms": retention,
        "retention.bytes": _FOREVER,
        "max.message.bytes": str(MESSAGE_SIZE_BYTES),
        "compression.type": "producer",  # batches stay as they were sent: the broker need not pack them anew
        # By default the broker refuses a writer whose clock is an hour ahead, and deletes by the writers' clocks. No
        # reader looks at this time: that of an event is in its head.
        TIMESTAMP_TYPE: BROKER_TIME,
        MIN_INSYNC: str(min(2, replicas)),
    }


async def ensure_topics(settings: KafkaSettings) -> None:
    """Creates the topics that are missing; returns once all have leaders.

    Raises ConflictError for one that differs fatally (number of partitions, compaction, retention of truth), and the
    errors of `rftd.streams.kafka.connect`.
    """
    admin = await _start(settings)
    try:
        async with asyncio.timeout(6 * REQUEST_TIMEOUT_S):
            found = await _describe(admin, settings)
            missing = [topic for topic in TOPICS.values() if settings.prefix + topic.name not in found]
            if missing:
                await _create(admin, settings, missing)
            # Creation is known to every broker a little later; `ensure_topics` may also race another daemon's.
            while len(found) < len(TOPICS):
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
            raise ConflictError(difference.what, where=f"Kafka at {settings.bootstrap}", fix=difference.fix)
        if difference.setting == MIN_INSYNC:  # the log can be used, and keeps less than it promises
            _logger.warning("%s; fix: %s", difference.what, difference.fix)


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


async def settings_of(settings: KafkaSettings, name: str) -> dict[str, str]:
    """The settings of one topic, which the cluster calls `name`; empty if the user may not read them."""
    admin = await _start(settings)
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return (await _configs(admin, [name])).get(name, {})
    except (kafka.KafkaError, OSError, TimeoutError) as error:
        raise translate(error, settings) from error
    finally:
        await admin.close()


async def rights_of_user(settings: KafkaSettings) -> Allowed:
    """The rights of the user on each topic of the log; empty where the broker does not tell, or is too old to."""
    admin = await _start(settings)
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return await _asked(lambda: allowed_operations(admin, settings.prefix))
    except NotImplementedError:
        return {}
    except (kafka.KafkaError, OSError, TimeoutError) as error:
        raise translate(error, settings) from error
    finally:
        await admin.close()


async def log_id(settings: KafkaSettings) -> str:
    """The id of the cluster, with the prefix of the log's topics; empty if the cluster does not tell its own."""
    admin = await _start(settings)
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            cluster = (await _asked(admin.describe_cluster)).get("cluster_id")
    except (kafka.KafkaError, OSError, TimeoutError) as error:
        raise translate(error, settings) from error
    finally:
        await admin.close()
    return f"{cluster}/{settings.prefix}" if cluster else ""


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


async def _describe(admin: AIOKafkaAdminClient, settings: KafkaSettings) -> dict[str, _Found]:
    """Each topic of ours that exists and has leaders."""
    names = [settings.prefix + name for name in TOPICS]
    found: dict[str, _Found] = {}
    for answer in await _asked(lambda: admin.describe_topics(names)):
        parts = answer["partitions"]
        if answer["error_code"] == 0 and all(part["error_code"] in (0, _REPLICA_AWAY) for part in parts):
            fewest = min((len(part["replicas"]) for part in parts), default=0)
            found[answer["topic"]] = _Found(len(parts), fewest)
        elif answer["error_code"] not in (0, *_NO_METADATA):
            raise kafka.for_code(answer["error_code"])(answer["topic"])
    return found


async def _create(admin: AIOKafkaAdminClient, settings: KafkaSettings, missing: list[Topic]) -> None:
    made = [
        NewTopic(
            settings.prefix + topic.name,
            topic.partitions,
            settings.replication,
            topic_configs=configs_of(topic, settings.replication),
        )
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


async def _differences(
    admin: AIOKafkaAdminClient, settings: KafkaSettings, found: dict[str, _Found]
) -> list[Difference]:
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
        if found[name].partitions != topic.partitions:
            differences.append(
                Difference(
                    topic=name,
                    setting="partitions",
                    found=str(found[name].partitions),
                    expected=str(topic.partitions),
                    fatal=True,
                    fix="use another prefix=: the number of partitions of a stream never changes in place",
                )
            )
        differences += _compare(name, topic, found[name].replicas, configs.get(name, {}))
    return differences


def _compare(name: str, topic: Topic, replicas: int, found: dict[str, str]) -> list[Difference]:
    differences = []
    truth = topic.retention_s is None
    for setting, expected in configs_of(topic, replicas).items():
        value = found.get(setting)
        if value is None or value == expected:
            continue
        if setting in ("max.message.bytes", MIN_INSYNC) and int(value) >= int(expected):
            continue
        # Fatal is what deletes truth, now or some day; anything else can be mended while the log is in use.
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
                fix=setting_command(name, setting, expected),
            )
        )
    return differences


def setting_command(name: str, setting: str, value: str) -> str:
    """The command that gives a setting of a topic this value."""
    return f"kafka-configs.sh --alter --topic {name} --add-config {setting}={value}"


async def _configs(admin: AIOKafkaAdminClient, names: list[str]) -> dict[str, dict[str, str]]:
    """The settings of each topic, as far as the user may read them."""
    wanted = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    answers: list[Any] = await _asked(lambda: admin.describe_configs(wanted))
    return {
        name: {entry[0]: entry[1] for entry in entries if entry[1] is not None}
        for answer in answers
        for code, _message, _kind, name, entries in answer.resources
        if code == 0
    }


async def _asked(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer of a broker that lives: aiokafka asks one of those that the cluster named last, and only once."""
    for _ in range(DEAD_ASKED):
        try:
            return await ask()
        except (kafka.NodeNotReadyError, kafka.KafkaConnectionError):
            await asyncio.sleep(POLL_S)
    return await ask()
