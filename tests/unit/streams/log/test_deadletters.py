"""Records that are not ours stop nobody, change nothing, and are pointed at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from synthetic.log.garbage import garbage, garbage_of

from rftd.ops.clock import ManualClock
from rftd.ops.ids import SeededIds
from rftd.streams.events.catalogue import UnknownVersionError
from rftd.streams.events.experiment import ExperimentPaused, ExperimentResumed
from rftd.streams.events.worker import RecordDeadLettered
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer
from rftd.streams.log.deadletters import DeadLetterBox, decode_ours, understood
from rftd.streams.log.envelope import Decoded, Draft, Head
from rftd.streams.log.follower import Follower
from rftd.streams.log.log import EventLog, start_of
from rftd.streams.log.topics import EVERY_PARTITION, TRUTH, Partition, partition_of
from rftd.streams.memory import MemoryLog
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.verify.checker import verify

pytestmark = pytest.mark.anyio

EXPERIMENT = UUID(int=77)
SPINE = partition_of(topics.EXPERIMENTS, EXPERIMENT)


class Seen:
    """A fold that remembers the names of what it was given."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def apply(self, decoded: Decoded) -> None:
        self.names.append(decoded.head.type)


class Author:
    """Clock, ids and a writer of ours."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ids = SeededIds(self.clock, 3)
        self.writer = Writer(source="test", clock=self.clock, ids=self.ids)

    def draft(self, event: ExperimentPaused | ExperimentResumed) -> Draft:
        return self.writer.draft(event, experiment=EXPERIMENT)


@pytest.fixture
def author() -> Author:
    return Author()


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str) -> AsyncIterator[EventLog]:
    opened = MemoryLog() if request.param == "memory" else await SqliteLog.open(tmp_path / "log")
    yield opened
    await opened.close()


async def test_a_follower_leaves_out_what_is_not_ours_and_goes_on(log: EventLog, author: Author) -> None:
    await log.append([author.draft(ExperimentPaused())])
    await log.append(garbage(EXPERIMENT, author.ids, author.clock))
    await log.append([author.draft(ExperimentResumed())])
    seen = Seen()
    follower = Follower(log, seen, experiment=EXPERIMENT, positions=start_of(EVERY_PARTITION), clock=author.clock)
    await follower.catch_up()
    await follower.close()
    assert seen.names == ["experiment.paused", "experiment.resumed"]


async def test_every_piece_of_garbage_has_a_reason(author: Author, log: EventLog) -> None:
    await log.append(garbage(EXPERIMENT, author.ids, author.clock))
    for partition in EVERY_PARTITION:
        for record in await log.read(partition, 0):
            assert understood(record) is None
            with pytest.raises(Exception, match=f"{partition}@{record.offset}|no event type|belongs"):
                decode_ours(record)


async def test_a_newer_version_of_a_known_type_stops_the_reader(log: EventLog, author: Author) -> None:
    head = Head(id=author.ids.new(), type="batch.planned", version=99, experiment=EXPERIMENT, source="t", time_ns=1)
    await log.append([Draft(SPINE, head.id, msgspec.msgpack.encode(head), b"\x80")])
    follower = Follower(log, Seen(), experiment=EXPERIMENT, positions={SPINE: 0}, clock=author.clock)
    with pytest.raises(UnknownVersionError, match="newer"):
        await follower.catch_up()
    await follower.close()
    [finding] = (await verify(log)).findings
    assert finding.rule == "readable"
    assert "v99" in finding.what


async def test_a_pointer_is_written_once_for_each_place(log: EventLog, author: Author) -> None:
    [first, *_] = garbage_of(EXPERIMENT, SPINE, author.ids, author.clock)
    await log.append([first])
    letters = [
        RecordDeadLettered(
            stream=SPINE.stream, partition=SPINE.number, offset=offset, consumer="projector", code="X", reason="no"
        )
        for offset in (0, 1)
    ]
    for _ in range(2):
        box = DeadLetterBox(log, author.writer, clock=author.clock)
        await box.report(letters[:1])
        await box.report(letters)
    assert [record.offset for record in await log.read(Partition(topics.DEADLETTERS, 0), 0)] == [0, 1]


async def test_verify_lists_what_was_left_out_and_finds_nothing_broken(log: EventLog, author: Author) -> None:
    drafts = garbage(EXPERIMENT, author.ids, author.clock)
    await log.append(drafts)
    pointed = RecordDeadLettered(
        stream=SPINE.stream, partition=SPINE.number, offset=0, consumer="projector", code="X", reason="no"
    )
    await DeadLetterBox(log, author.writer, clock=author.clock).report([pointed])
    report = await verify(log)
    assert report.clean, report.findings
    assert len(report.dead_letters) == sum(1 for draft in drafts if draft.partition in TRUTH)
    assert [letter.place for letter in report.dead_letters if letter.pointed_at] == [f"{SPINE}@0"]
    assert report.experiments == ()
