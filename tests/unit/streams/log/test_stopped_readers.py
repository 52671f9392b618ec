"""A reader that a record stops stays there: whoever asks it again meets the same record, and nothing is skipped."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.run.registry import Registry
from rftd.ops import limits
from rftd.ops.clock import ManualClock
from rftd.storage.files.snapshots import SnapshotFolder
from rftd.streams.events.catalogue import UnknownVersionError
from rftd.streams.log.envelope import Decoded, Draft, Head
from rftd.streams.log.follower import Follower
from rftd.streams.log.topics import EXPERIMENTS, Partition, partition_of
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio


def newer(experiment: UUID, recorder: Recorder) -> Draft:
    """A record of a later release."""
    head = Head(
        id=recorder.ids.new(), type="experiment.paused", version=99, experiment=experiment, source="later", time_ns=1
    )
    return Draft(partition_of(EXPERIMENTS, experiment), head.id, msgspec.msgpack.encode(head), b"\x80")


async def log_with_a_newer_record(recorder: Recorder) -> tuple[MemoryLog, SyntheticRun]:
    """An experiment whose first record nobody here understands, and much that follows it."""
    log, run = MemoryLog(), SyntheticRun(recorder)
    run.begin()
    await log.append([newer(run.id, recorder), *recorder.drafts])
    return log, run


async def test_a_registry_skips_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_RECORDS", 1)
    log, one = await log_with_a_newer_record(Recorder())
    registry = Registry(log, tmp_path)
    for _ in range(2):
        with pytest.raises(UnknownVersionError, match="newer"):
            await registry.catch_up()
    assert registry.position()[one.spine] == 0
    assert SnapshotFolder(tmp_path).newest_first() == [], "what was not read is not in a snapshot"


class Seen:
    def __init__(self) -> None:
        self.offsets: list[int] = []

    def apply(self, decoded: Decoded) -> None:
        self.offsets.append(decoded.offset)


async def test_a_follower_skips_nothing() -> None:
    log, one = await log_with_a_newer_record(Recorder())
    places = {one.spine: 0, Partition(EXPERIMENTS, (one.spine.number + 1) % 2): 0}
    seen = Seen()
    follower = Follower(log, seen, experiment=one.id, positions=places, clock=ManualClock())
    for _ in range(2):
        with pytest.raises(UnknownVersionError, match="newer"):
            await follower.catch_up()
    assert follower.positions[one.spine] == 0
    assert seen.offsets == []
    assert next(mark for mark in follower.marks() if mark.partition == one.spine.number).next_offset == 0
    await follower.close()
