"""`KafkaBackend`: a log on a Kafka cluster, and the checks of `rftd doctor` for one.

The checks cover answering brokers, the user's rights, topics equal to the table of streams, records deleted from the
streams of truth, and settings with weaker guarantees.
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
"""Hosts of this machine."""
_TIMEOUT_S: Final = 60.0
"""Time limit in seconds for each part of the checks of `rftd doctor`."""
DOCTOR_TIMEOUT_S: Final = 20.0
"""Maximum seconds `rftd doctor` searches a long log for missing offsets; `rftd verify` reads all of them."""
_POLL_MS: Final = 200
"""Longest wait of one poll, in milliseconds."""


class KafkaBackend(LogBackend):
    """The log backend of Kafka URLs (`kafka://HOST:PORT/?prefix=...`) and plain broker addresses; see
    `KafkaSettings`.
    """

    name = "Kafka"
    """Name of the backend in texts."""
    form = "kafka://HOST:PORT"
    """Form of the backend's URLs."""
    option = "--kafka"
    """The command line's option for such a URL."""

    def checked(self, text: str) -> LogUrl:
        """Parses the URL; see `LogBackend.checked`."""
        return LogUrl(SCHEME, kafka_url(parse_kafka(text)))

    def place(self, url: LogUrl) -> str:
        """Returns the brokers' addresses as text for people, without the topic prefix; see `LogBackend.place`."""
        return f"Kafka at {parse_kafka(url.text).bootstrap}"

    def variables(self, url: LogUrl) -> tuple[str, ...]:
        """Returns the name of the password's environment variable if the brokers require a login, else nothing; see
        `LogBackend.variables`.
        """
        settings = parse_kafka(url.text)
        return (settings.password_env,) if settings.sasl else ()

    async def open(self, url: LogUrl, *, clock: Clock, ids: Ids) -> KafkaLog:
        """Opens the log; see `LogBackend.open`."""
        return await KafkaLog.open(parse_kafka(url.text), clock=clock, ids=ids)

    async def identity(self, url: LogUrl) -> str:
        """Returns the cluster's id with the topic prefix; see `LogBackend.identity`."""
        return await log_id(parse_kafka(url.text))

    async def diagnose(self, text: str) -> list[Diagnosis]:
        """Checks brokers, topics, rights, settings and records, for `rftd doctor`; see `LogBackend.diagnose`."""
        try:
            settings = parse_kafka(text)
            async with asyncio.timeout(_TIMEOUT_S):
                rights = _of_rights(settings, await rights_of_user(settings))
                if any(
                    diagnosis.status == "fail" for diagnosis in rights
                ):  # topics closed to this user cannot be compared
                    return [Diagnosis("kafka", "ok", f"{settings.bootstrap} answers"), *rights]
                differences = await topic_differences(settings)
        except TimeoutError:
            return [Diagnosis("kafka", "fail", f"no answer within {_TIMEOUT_S:g} s", "check that the brokers run")]
        except RftdError as error:
            fix = error.fix or "see rftd explain " + error.code
            return [Diagnosis("kafka", "fail", f"{error.where}: {error.what}", fix)]
        answers = Diagnosis("kafka", "ok", f"{settings.bootstrap} answers")
        topics = list(_of_topics(differences))
        absent = any(difference.setting == "existence" for difference in differences)
        deleted = [] if absent else await _of_records(settings)
        well = [] if differences else [Diagnosis("topics", "ok", "all exist with the expected settings")]
        return [answers, *rights, *topics, *deleted, *well, *_of_settings(settings)]


def _of_rights(settings: KafkaSettings, allowed: Allowed) -> list[Diagnosis]:
    """Reports the rights that a daemon needs and this user lacks: a warning if the rights are enough for a worker, else
    a failure; empty if the broker reports no rights.
    """
    lacking = {role: in_words(missing_rights(role, allowed, settings.prefix)) for role in WRITES}
    if not allowed:
        return []
    if not lacking["daemon"]:
        return [Diagnosis("rights", "ok", "all that a daemon needs on the existing topics")]
    lacking_text = f"the user {settings.username or 'anonymous'} lacks {lacking['daemon']}"
    fix = "kafka-acls.sh --add, see docs/production.md (Rights)"
    if enough := [role for role, lacks in lacking.items() if not lacks]:
        lacking_text = f"enough for the role {' and '.join(enough)}; for a daemon, {lacking_text}"
        return [Diagnosis("rights", "warn", lacking_text, f"nothing if no daemon uses this user; otherwise {fix}")]
    return [Diagnosis("rights", "fail", lacking_text, fix)]


def _of_topics(differences: list[Difference]) -> Iterator[Diagnosis]:
    """Reports the missing topics, in one line, then each topic with a wrong setting."""
    missing = [difference.topic for difference in differences if difference.setting == "existence"]
    if missing:
        missing_text = f"missing: {', '.join(missing)}"
        yield Diagnosis("topics", "warn", missing_text, "start `rftd serve`: it creates them if it has the rights")
    for difference in differences:
        if difference.setting != "existence":
            yield Diagnosis("topics", "fail" if difference.fatal else "warn", difference.what, difference.fix)


def _of_settings(settings: KafkaSettings) -> Iterator[Diagnosis]:
    """Warns about settings weakening the guarantees of this cluster."""
    if settings.replication >= 2:
        yield Diagnosis(
            "replication", "ok", f"{settings.replication} copies of each record, acknowledged once two have it"
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
    """Reports each partition of truth with missing records, and the searched part if the search ran out of time; empty
    if the search itself failed.
    """
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            missing, searched, total = await missing_records(settings, within_s=DOCTOR_TIMEOUT_S)
    except (RftdError, TimeoutError):
        return []  # without topics; other faults are reported elsewhere
    diagnoses = [
        Diagnosis(
            "records",
            "fail",
            f"{partition}@{first} to {end - 1} were deleted, or compacted away, and the log needs them",
            "restore them from a replica or a backup; experiments that need them stop, see `rftd serve --accept-loss`",
        )
        for partition, (first, end) in missing
    ]
    if searched < total:
        progress = f"searched {searched:,} of {total:,} offsets for gaps within {DOCTOR_TIMEOUT_S:g} s"
        diagnoses.append(Diagnosis("records", "ok", progress, "`rftd verify` reads all of them"))
    return diagnoses


class DeletedRecords(NamedTuple):
    """Missing records found by a search, and how much of the log was searched."""

    gone: list[tuple[Partition, Stretch]]
    """Ranges of offsets with missing records, by partition."""
    looked: int
    """Number of offsets searched."""
    there: int
    """Total number of offsets."""


async def missing_records(settings: KafkaSettings, *, within_s: float) -> DeletedRecords:
    """Searches every partition that must not lose records for missing first records and for gaps.

    The search for gaps ends after `within_s` seconds. Raises the errors of `rftd.streams.kafka.connect`.
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
                    await _search(settings, names, reached, unread, gaps)
            except TimeoutError:
                pass  # the answer states the part searched
            except (kafka.KafkaError, OSError) as error:
                raise translate(error, settings) from error
            await gaps.judge()
    finally:
        await offsets.stop()
    # Truth is kept for ever: a first offset above 0 means that retention, or a person, deleted the records below it.
    below = [(partition, Stretch(0, first)) for partition, first in firsts.items() if first]
    searched = sum(min(reached[partition], ends[partition]) - firsts[partition] for partition in TRUTH)
    total = sum(ends[partition] - firsts[partition] for partition in TRUTH)
    return DeletedRecords(sorted([*below, *gaps.found.items()]), searched, total)


async def _search(
    settings: KafkaSettings, names: Names, reached: dict[Partition, int], ends: dict[Partition, int], gaps: Gaps
) -> None:
    """Reads each partition from `reached` up to its end, notes missing offsets in `gaps`, and advances `reached`, also
    for a caller that cancels the search.
    """
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
        # Up to the ends known before: with a log in use, the search would never come to an end.
        while any(reached[partition] < end for partition, end in ends.items()):
            for name, messages in (await consumer.getmany(timeout_ms=_POLL_MS)).items():
                partition = names.ours(name)
                due[partition] = gaps.look(partition, due[partition], messages)
            for partition in ends:
                # Not `due`: a partition may end with a transaction's marker, without a record after it.
                reached[partition] = await consumer.position(names.kafka(partition))
    finally:
        await consumer.stop()
