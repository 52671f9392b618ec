"""The registry goes on from what it knew: a start does not read every spine from its first record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.run.registry import Registry
from rftd.ops import limits
from rftd.streams.log.tail import TailSubscription
from rftd.streams.log.topics import EXPERIMENTS, Partition
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio


class WatchedLog(MemoryLog):
    """Remembers from where it was read."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[dict[Partition, int]] = []

    def subscribe(self, positions: Mapping[Partition, int]) -> TailSubscription:
        self.starts.append(dict(positions))
        return super().subscribe(positions)


def plain(registry: Registry) -> object:
    return registry.entries, registry.commands, sorted(registry.fences.owners(), key=repr)


async def test_a_start_reads_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_RECORDS", 10)
    recorder = Recorder()
    runs = [SyntheticRun(recorder, name=name, steps=1).write() for name in ("one", "two")]
    log, half = WatchedLog(), len(recorder.drafts) // 2
    await log.append(recorder.drafts[:half])
    first = Registry(log, tmp_path)
    await first.catch_up()
    ends = {each: mark.next_offset for each, mark in (await log.heads()).items() if each.stream == EXPERIMENTS}
    await log.append(recorder.drafts[half:])
    whole, again = Registry(log), Registry(log, tmp_path)
    entries = again.entries
    await whole.catch_up()
    await again.catch_up()
    assert {run.id for run in runs} == set(entries) == set(again.entries), "who looks at them sees what is new"
    assert plain(again) == plain(whole)
    assert {each: start for each, start in log.starts[-1].items() if start} == ends


def flip_last(folder: Path) -> None:
    (path,) = folder.glob("*.fold")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("spoil", ["byte", "log"])
async def test_what_cannot_be_believed_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_RECORDS", 10)
    recorder, other = Recorder(), Recorder(7)
    for each in (recorder, other):
        SyntheticRun(each, steps=1).write()
    log, elsewhere = WatchedLog(), WatchedLog()
    await log.append(recorder.drafts)
    await elsewhere.append(other.drafts)
    await Registry(elsewhere if spoil == "log" else log, tmp_path).catch_up()
    if spoil == "byte":
        flip_last(tmp_path)
    whole, again = Registry(log), Registry(log, tmp_path)
    await whole.catch_up()
    with capture_logs() as lines:
        await again.catch_up()
    assert [line["event"] for line in lines] == ["snapshot.ignored"]
    assert plain(again) == plain(whole)
