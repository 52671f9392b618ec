"""Whatever lies between an experiment's records, and whatever interrupts it, an import holds the same history."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.log.recorder import Recorder, interleaved
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.ops.errors import UnreachableError
from rftd.storage.portable.experiment import experiment_digest, export_experiment, import_experiment
from rftd.streams.log.codec import decode
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.topics import TRUTH
from rftd.streams.memory import MemoryFaults, MemoryLog
from rftd.streams.portable.experiment_records import OwnRecords
from rftd.streams.portable.positions import Blank, rewrite
from rftd.streams.portable.source import encode
from rftd.streams.verify.checker import verify

STAY = [("/jobs", "/jobs")]


class Interrupted(Exception):
    """The export ends here as if the process had died."""


class Dying(MemoryLog):
    """Dies after some appends; of the last a part may have landed."""

    def __init__(self, appends: int, faults: MemoryFaults) -> None:
        super().__init__(faults)
        self.left = appends

    async def append(self, drafts: list[Draft]) -> list[Position]:
        self.left -= 1
        if self.left == 0:
            await super().append(drafts[: len(drafts) // 2])
            raise Interrupted
        return await super().append(drafts)


async def landed(log: MemoryLog, draft: Draft) -> None:
    """Returns once the draft is in the log."""
    while True:
        try:
            await log.append([draft])
            return
        except UnreachableError:
            continue


async def history(log: MemoryLog, run: SyntheticRun) -> list[tuple[object, ...]]:
    """Everything of the experiment, without places."""
    return [
        (partition, record.head, encode(rewrite(decode(record).event, Blank())))
        for partition in TRUTH
        async for chunk in OwnRecords(log, run.id).chunks(partition)
        for record in chunk
    ]


async def written(recorder: Recorder) -> MemoryLog:
    log = MemoryLog()
    for start in range(0, len(recorder.drafts), 1000):
        await log.append(recorder.drafts[start : start + 1000])
    return log


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    steps=st.integers(1, 3),
    before=st.booleans(),
    deaths=st.lists(st.integers(1, 6), max_size=3),
)
def test_an_import_holds_the_same_history(seed: int, steps: int, before: bool, deaths: list[int]) -> None:
    async def scenario(folder: Path) -> None:
        clock, recorder = ManualClock(), Recorder(seed)
        first = SyntheticRun(recorder, name="first", steps=1, seed=seed).write()
        run = SyntheticRun(recorder, name="moved", steps=steps, seed=seed + 1).write()
        source = await written(recorder)
        path = folder / "x.rftd"
        await export_experiment(source, run.id, path, release="1", clock=clock, checkpoints="none")
        other = Recorder(seed + 7)
        SyntheticRun(other, name="there", steps=1, seed=seed).write()
        faults = MemoryFaults(seed=seed, unknown_p=0.1, fail_p=0.1, duplicate_p=0.2)
        target = Dying(0, faults)
        if before:
            for draft in interleaved(other.drafts, seed):
                await landed(target, draft)
        for appends in deaths:
            target.left = appends
            try:
                await import_experiment(target, path, home=folder, clock=clock, moves=STAY, verify=False)
            except Interrupted:
                continue
        target.left = 0
        done = await import_experiment(target, path, home=folder, clock=clock, moves=STAY)
        assert done.equal
        assert await history(target, run) == await history(source, run)
        wanted = await experiment_digest(OwnRecords(source, run.id), clock=clock)
        assert await experiment_digest(OwnRecords(target, run.id), clock=clock) == wanted
        heads = await target.heads()
        again = await import_experiment(target, path, home=folder, clock=clock, moves=STAY)
        assert again.appended == 0
        assert await target.heads() == heads
        findings = [finding for finding in (await verify(target)).findings if finding.experiment == run.id]
        expected = [finding for finding in (await verify(source)).findings if finding.experiment == run.id]
        assert [finding.rule for finding in findings] == [finding.rule for finding in expected]
        assert first.id != run.id

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder)))
