"""Looks through the offsets of a cluster's truth for records that somebody deleted."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka

from rftd.ops import limits
from rftd.streams.backends.kafka.connect import arguments, translate
from rftd.streams.backends.kafka.names import Names
from rftd.streams.backends.kafka.offsets import Offsets
from rftd.streams.backends.kafka.reading import Gaps
from rftd.streams.backends.kafka.settings import KafkaSettings
from rftd.streams.envelope import Stretch
from rftd.streams.topics import TRUTH, Partition

_POLL_MS: Final = 200


class Missing(NamedTuple):
    """What is gone, as far as was looked."""

    gone: list[tuple[Partition, Stretch]]
    looked: int
    """Offsets that were looked at."""
    there: int
    """Offsets that there are."""


async def missing_records(settings: KafkaSettings, *, within_s: float) -> Missing:
    """The first records and the gaps that are missing; gaps are looked for until `within_s` have passed.

    Raises the errors of `rftd.streams.backends.kafka.connect`.
    """
    names = Names(settings.prefix)
    offsets = Offsets(settings, names)
    await offsets.start()
    try:
        firsts, ends = await offsets.starts(TRUTH), await offsets.ends(TRUTH)
    finally:
        await offsets.stop()
    gaps = Gaps()
    due = dict(firsts)
    unread = {partition for partition in TRUTH if due[partition] < ends[partition]}
    if unread:
        try:
            async with asyncio.timeout(within_s):
                await _look(settings, names, due, {partition: ends[partition] for partition in unread}, gaps)
        except TimeoutError:
            pass  # what was not reached is said
        except (kafka.KafkaError, OSError) as error:
            raise translate(error, settings) from error
    below = [(partition, Stretch(0, first)) for partition, first in firsts.items() if first]
    looked = sum(min(due[partition], ends[partition]) - firsts[partition] for partition in TRUTH)
    there = sum(ends[partition] - firsts[partition] for partition in TRUTH)
    return Missing(sorted([*below, *gaps.found.items()]), looked, there)


async def _look(
    settings: KafkaSettings, names: Names, due: dict[Partition, int], ends: dict[Partition, int], gaps: Gaps
) -> None:
    """Reads on from `due`, which it raises, up to the ends."""
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
        while any(due[partition] < end for partition, end in ends.items()):
            for name, messages in (await consumer.getmany(timeout_ms=_POLL_MS)).items():
                partition = names.ours(name)
                due[partition] = gaps.look(partition, due[partition], messages)
    finally:
        await consumer.stop()
