"""`KafkaBackend`: a Kafka cluster as the place of a log, and what `rftd doctor` finds there.

The doctor looks whether brokers answer, whether the topics are as the table of streams says, and through the offsets of
the cluster's truth for records that somebody deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError
from rftd.ops.health import Diagnosis
from rftd.ops.ids import Ids
from rftd.streams.kafka.connect import arguments, translate
from rftd.streams.kafka.gaps import Gaps
from rftd.streams.kafka.log import KafkaLog
from rftd.streams.kafka.partitions import Names, Offsets
from rftd.streams.kafka.rights import WRITES, Allowed, in_words, missing_rights
from rftd.streams.kafka.settings import SCHEME, KafkaSettings, kafka_url, parse_kafka
from rftd.streams.kafka.topics import Difference, log_id, rights_of_user, topic_differences
from rftd.streams.log.backend import LogBackend, LogUrl
from rftd.streams.log.envelope import Stretch
from rftd.streams.log.topics import TRUTH, Partition

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
_TIMEOUT_S: Final = 60.0
_LOOK_S: Final = 20.0
"""The time for which the offsets of a long log are looked through; `rftd verify` reads all of them."""
_POLL_MS: Final = 200


class KafkaBackend(LogBackend):
    """`kafka://HOST:PORT/?prefix=...`, or addresses alone: see `KafkaSettings`."""

    name = "Kafka"
    form = "kafka://HOST:PORT"
    option = "--kafka"

    def checked(self, text: str) -> LogUrl:
        return LogUrl(SCHEME, kafka_url(parse_kafka(text)))

    def place(self, url: LogUrl) -> str:
        return f"Kafka at {parse_kafka(url.text).bootstrap}"

    def variables(self, url: LogUrl) -> tuple[str, ...]:
        settings = parse_kafka(url.text)
        return (settings.password_env,) if settings.sasl else ()

    async def open(self, url: LogUrl, *, clock: Clock, ids: Ids) -> KafkaLog:
        return await KafkaLog.open(parse_kafka(url.text), clock=clock, ids=ids)

    async def identity(self, url: LogUrl) -> str:
        return await log_id(parse_kafka(url.text))

    async def diagnose(self, text: str) -> list[Diagnosis]:
        try:
            settings = parse_kafka(text)
            async with asyncio.timeout(_TIMEOUT_S):
                rights = _of_rights(settings, await rights_of_user(settings))
                if any(each.status == "fail" for each in rights):  # what it may not look at cannot be compared
                    return [Diagnosis("kafka", "ok", f"{settings.bootstrap} answers"), *rights]
                differences = await topic_differences(settings)
        except TimeoutError:
            return [Diagnosis("kafka", "fail", f"no answer within {_TIMEOUT_S:g} s", "see whether the brokers run")]
        except RftdError as error:
            fix = error.fix or "see rftd explain " + error.code
            return [Diagnosis("kafka", "fail", f"{error.where}: {error.what}", fix)]
        answers = Diagnosis("kafka", "ok", f"{settings.bootstrap} answers")
        topics = list(_of_topics(differences))
        absent = any(difference.setting == "existence" for difference in differences)
        deleted = [] if absent else await _of_records(settings)
        well = [] if differences else [Diagnosis("topics", "ok", "all are there, as they must be")]
        return [answers, *rights, *topics, *deleted, *well, *_of_settings(settings)]


def _of_rights(settings: KafkaSettings, allowed: Allowed) -> list[Diagnosis]:
    """The rights that this user lacks as a daemon; a user of workers has enough with less."""
    lacking = {role: in_words(missing_rights(role, allowed, settings.prefix)) for role in WRITES}
    if not allowed:
        return []
    if not lacking["daemon"]:
        return [Diagnosis("rights", "ok", "all that a daemon needs on the topics that are there")]
    what = f"the user {settings.username or 'anonymous'} lacks {lacking['daemon']}"
    fix = "kafka-acls.sh --add, as docs/production.md (Rights) has it"
    if enough := [role for role, lacks in lacking.items() if not lacks]:
        what = f"enough for the role {' and '.join(enough)}; for a daemon, {what}"
        return [Diagnosis("rights", "warn", what, f"nothing, if no daemon uses this user; else {fix}")]
    return [Diagnosis("rights", "fail", what, fix)]


def _of_topics(differences: list[Difference]) -> Iterator[Diagnosis]:
    """The topics that are missing, in one line, then each that is not as it must be."""
    missing = [difference.topic for difference in differences if difference.setting == "existence"]
    if missing:
        what = f"missing: {', '.join(missing)}"
        yield Diagnosis("topics", "warn", what, "start `rftd serve`: it creates them, if it may")
    for difference in differences:
        if difference.setting != "existence":
            yield Diagnosis("topics", "fail" if difference.fatal else "warn", difference.what, difference.fix)


def _of_settings(settings: KafkaSettings) -> Iterator[Diagnosis]:
    """The warnings about settings with which this cluster promises less than it could."""
    if settings.replication >= 2:
        yield Diagnosis(
            "replication", "ok", f"{settings.replication} copies of each record; two have it before it is acknowledged"
        )
    if settings.replication < 2:
        yield Diagnosis(
            "replication",
            "warn",
            "one copy of each record: a broker that loses its disk, or its power, loses acknowledged records",
            "on a cluster set replication=3; new topics then acknowledge from two copies",
        )
    hosts = {host.rpartition(":")[0] for host in settings.bootstrap.split(",")}
    if settings.security == "PLAINTEXT" and not hosts <= _LOOPBACK:
        yield Diagnosis("encryption", "warn", "records cross the network in plain text", "set security=SSL or SASL_SSL")


async def _of_records(settings: KafkaSettings) -> list[Diagnosis]:
    """The partitions of truth from which records are gone."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            gone, looked, there = await missing_records(settings, within_s=_LOOK_S)
    except (RftdError, TimeoutError):
        return []  # without topics; what else is wrong is said elsewhere
    found = [
        Diagnosis(
            "records",
            "fail",
            f"{partition}@{first} to {end - 1} were deleted, or compacted away, and they are truth",
            "restore them from a replica or a backup; experiments that need them stop, see `rftd serve --accept-loss`",
        )
        for partition, (first, end) in gone
    ]
    if looked < there:
        what = f"looked for gaps in {looked:,} of {there:,} within {_LOOK_S:g} s"
        found.append(Diagnosis("records", "ok", what, "`rftd verify` reads all of them"))
    return found


class DeletedRecords(NamedTuple):
    """The records that a search found missing, and how far it came."""

    gone: list[tuple[Partition, Stretch]]
    looked: int
    """Offsets that were looked at."""
    there: int
    """Offsets that there are."""


async def missing_records(settings: KafkaSettings, *, within_s: float) -> DeletedRecords:
    """The first records and the gaps that are missing; gaps are looked for until `within_s` have passed.

    Raises the errors of `rftd.streams.kafka.connect`.
    """
    names = Names(settings.prefix)
    offsets = Offsets(settings, names)
    await offsets.start()
    try:
        firsts = await offsets.starts(TRUTH)
        ends = await offsets.ends(TRUTH)
        gaps = Gaps(names, offsets)
        reached = dict(firsts)
        unread = {partition: ends[partition] for partition in TRUTH if reached[partition] < ends[partition]}
        if unread:
            try:
                async with asyncio.timeout(within_s):
                    await _look(settings, names, reached, unread, gaps)
            except TimeoutError:
                pass  # what was not reached is said
            except (kafka.KafkaError, OSError) as error:
                raise translate(error, settings) from error
            await gaps.judge()
    finally:
        await offsets.stop()
    # Truth is kept for ever: a first offset above 0 says that retention, or a person, deleted what was below it.
    below = [(partition, Stretch(0, first)) for partition, first in firsts.items() if first]
    looked = sum(min(reached[partition], ends[partition]) - firsts[partition] for partition in TRUTH)
    there = sum(ends[partition] - firsts[partition] for partition in TRUTH)
    return DeletedRecords(sorted([*below, *gaps.found.items()]), looked, there)


async def _look(
    settings: KafkaSettings, names: Names, reached: dict[Partition, int], ends: dict[Partition, int], gaps: Gaps
) -> None:
    """Reads on from `reached`, which it raises, up to the ends."""
    due = dict(reached)
    consumer = AIOKafkaConsumer(
        group_id=None,
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=4 * limits.MIB,
        **arguments(settings),
    )
    try:
        await consumer.start()
        consumer.assign([names.kafka(partition) for partition in ends])
        for partition in ends:
            consumer.seek(names.kafka(partition), due[partition])
        # Up to the ends that were asked for before: a log in use would never let the search come to its end.
        while any(reached[partition] < end for partition, end in ends.items()):
            for name, messages in (await consumer.getmany(timeout_ms=_POLL_MS)).items():
                partition = names.ours(name)
                due[partition] = gaps.look(partition, due[partition], messages)
            for partition in ends:
                # Not `due`: a partition may end with a transaction's marker, after which no record comes.
                reached[partition] = await consumer.position(names.kafka(partition))
    finally:
        await consumer.stop()
