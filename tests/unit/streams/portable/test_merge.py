"""The order of an import: what is named comes first, whatever the clocks say and however small the batches."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.ops.errors import ArchiveError
from rftd.storage.portable.experiment import export_experiment, import_experiment
from rftd.streams.events.task import GroupClosed, Member
from rftd.streams.log import topics
from rftd.streams.log.codec import decode_head
from rftd.streams.log.envelope import Draft, Record
from rftd.streams.log.topics import Partition
from rftd.streams.memory import MemoryFaults, MemoryLog
from rftd.streams.portable.container import ArchiveReader
from rftd.streams.portable.folders import Folders
from rftd.streams.portable.load import Merge
from rftd.streams.portable.positions import NeededRecords, Places, rewrite
from rftd.streams.portable.source import entries
from rftd.streams.verify.checker import verify

STAY = [("/jobs", "/jobs")]


def backwards(draft: Draft) -> Draft:
    """The same event, said to have happened the earlier the later it did."""
    head = decode_head(Record(draft.partition, 0, b"", draft.head, draft.value))
    head = msgspec.structs.replace(head, time_ns=(1 << 61) - head.time_ns)
    return Draft(draft.partition, draft.id, msgspec.msgpack.Encoder(uuid_format="bytes").encode(head), draft.value)


async def broken(log: MemoryLog, run: SyntheticRun) -> list[str]:
    """The rules that the synthetic experiment does not keep."""
    return [each.rule for each in (await verify(log)).findings if each.experiment == run.id]


async def exported(folder: Path) -> tuple[Path, SyntheticRun, MemoryLog]:
    recorder = Recorder(3)
    SyntheticRun(recorder, name="other", steps=1).write()
    run = SyntheticRun(recorder, name="moved", steps=2, seed=1).write()
    log = MemoryLog()
    await log.append([backwards(draft) for draft in recorder.drafts])
    path = folder / "x.rftd"
    await export_experiment(log, run.id, path, release="1", clock=ManualClock(), checkpoints="none")
    return path, run, log


@pytest.mark.anyio
async def test_what_is_named_is_appended_before(tmp_path: Path) -> None:
    path, run, _ = await exported(tmp_path)
    with ArchiveReader(path) as archive:
        sources = {
            Partition(part.stream, part.partition): entries(archive, part, Folders())
            for part in archive.manifest.partitions
        }
        olds = {
            Partition(part.stream, part.partition): [entry.offset for entry in entries(archive, part, Folders())]
            for part in archive.manifest.partitions
        }
        places, seen, batches = Places(), 0, 0
        merge = Merge(run.id, sources, places, records=3)
        while batch := merge.next_batch():
            for entry in batch:
                needs = NeededRecords()
                rewrite(entry.event, needs)
                for partition, end in needs.wanted.items():
                    assert places.count(partition) >= sum(old < end for old in olds.get(partition, ()))
            for entry in batch:
                places.add(entry.partition, entry.offset, entry.offset)
            seen, batches = seen + len(batch), batches + 1
        assert seen == sum(part.records for part in archive.manifest.partitions)
        assert batches > seen / 4


@pytest.mark.anyio
async def test_clocks_that_disagree_do_not_matter(tmp_path: Path) -> None:
    path, run, source = await exported(tmp_path)
    target = MemoryLog()
    done = await import_experiment(target, path, home=tmp_path, clock=ManualClock(), moves=STAY)
    assert done.equal
    assert await broken(target, run) == await broken(source, run)


@pytest.mark.anyio
async def test_a_record_that_names_what_is_not_there_is_refused(tmp_path: Path) -> None:
    recorder = Recorder(5)
    run = SyntheticRun(recorder, name="broken", steps=1).write()
    member = Member(recorder.ids.new(), 0, 0, 10_000, 1.0, 0.0, 4, 0, 0)
    closed = GroupClosed(group=recorder.ids.new(), sequence=99, stage=1, members=(member,), failed=0)
    recorder.write(closed, run.id, role="dispatcher", partition=Partition(topics.TASKS, 0))
    log, target = MemoryLog(), MemoryLog()
    await log.append(recorder.drafts)
    path = tmp_path / "x.rftd"
    await export_experiment(log, run.id, path, release="1", clock=ManualClock(), checkpoints="none")
    with pytest.raises(ArchiveError, match="names a record missing in the export"):
        await import_experiment(target, path, home=tmp_path, clock=ManualClock(), moves=STAY)
    assert not await target.heads()


@pytest.mark.anyio
async def test_what_a_log_repeats_comes_once(tmp_path: Path) -> None:
    recorder = Recorder(3)
    run = SyntheticRun(recorder, name="moved", steps=2, seed=1).write()
    source, target = (MemoryLog(MemoryFaults(seed=seed, repeat_p=0.3)) for seed in (1, 2))
    await source.append(recorder.drafts)
    assert sum(mark.next_offset for mark in (await source.heads()).values()) > len(recorder.drafts)
    path = tmp_path / "x.rftd"
    await export_experiment(source, run.id, path, release="1", clock=ManualClock(), checkpoints="none")
    done = await import_experiment(target, path, home=tmp_path, clock=ManualClock(), moves=STAY)
    assert done.equal
    assert done.appended == len(recorder.drafts)
    again = await import_experiment(target, path, home=tmp_path, clock=ManualClock(), moves=STAY)
    assert (again.appended, again.present, again.equal) == (0, len(recorder.drafts), True)
