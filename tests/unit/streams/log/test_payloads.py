"""The payload of experiences leaves the log and comes back; everything that is folded of it stays as it was."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np
import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.scan_chain import scan_chain
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.errors import LogCorruptError, NotFoundError
from rftd.ops.ids import NAMESPACE, derive
from rftd.streams.events.experience import ExperienceProduced, Span
from rftd.streams.folds.run_state import RunState
from rftd.streams.log import topics
from rftd.streams.log.arrays import Array
from rftd.streams.log.codec import decode, decode_as, encode_value
from rftd.streams.log.effective import effective, of_experiment
from rftd.streams.log.envelope import Draft, Record
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.log import EventLog
from rftd.streams.log.payloads import Dropped, bring_back, drop_all, drop_at, give_back
from rftd.streams.log.topics import Partition
from rftd.streams.memory import MemoryLog
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.sqlite.view import SqliteView

pytestmark = pytest.mark.anyio

TOKENS = 1400


def experience(number: int, experiment: UUID, recorder: Recorder, tokens: int = TOKENS) -> Draft:
    """A produced experience; its tokens are as unevenly frequent as those of a text."""
    random = np.random.default_rng(number)
    id = derive(NAMESPACE, f"experience {number}")
    event = ExperienceProduced(
        experience=id,
        group=derive(NAMESPACE, f"group {number // 8}"),
        rollout=number % 8,
        stage=0,
        lease=derive(NAMESPACE, "lease"),
        tokens=Array.of(random.zipf(1.3, tokens).clip(0, 150_000), "u4"),
        prompt_tokens=tokens // 4,
        loss_mask=Array.of(np.ones(tokens - tokens // 4), "u1"),
        logprobs=Array.of(-random.exponential(0.5, tokens - tokens // 4), "f4"),
        spans=(Span(0, 0, 0, tokens - tokens // 4),),
        reward=float(random.random()),
    )
    recorder.write(event, experiment, key=event.group, id=id)
    return recorder.drafts[-1]


def folded(experiment: UUID, records: Iterable[Record]) -> bytes:
    """Everything that decisions rest on."""
    state, fences = RunState(experiment), FenceView()
    for record in records:
        decoded = effective(record, fences, of_experiment(experiment))
        if decoded is not None:
            state.apply(decoded)
    return msgspec.msgpack.encode(state.parts())


async def everything(log: EventLog) -> list[Record]:
    found: list[Record] = []
    for partition in topics.TRUTH:
        start = 0
        while records := await log.read(partition, start):
            found += records
            start = records[-1].offset + 1
    return found


async def open_log(kind: str, folder: Path) -> SqliteLog | MemoryLog:
    return await SqliteLog.open(folder) if kind == "sqlite" else MemoryLog()


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
async def test_without_payloads_every_fold_is_the_same(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rftd.streams.log.payloads.worth_it", lambda whole_bytes, thin_bytes: whole_bytes != thin_bytes)
    recorder = Recorder()
    run = SyntheticRun(recorder).write()
    other = SyntheticRun(recorder, name="other", seed=1).write()
    log = await open_log(kind, tmp_path)
    await log.append(recorder.drafts)
    before = await everything(log)
    dropped = await drop_all(log, run.id)
    after = await everything(log)
    thin = [record for record in after if record.thin]
    assert dropped.records == len(thin) > 10
    assert {decode(record).head.experiment for record in thin} == {run.id}
    assert [(each.partition, each.offset, each.chain, each.head) for each in before] == [
        (each.partition, each.offset, each.chain, each.head) for each in after
    ]
    for id in (run.id, other.id):
        assert folded(id, before) == folded(id, after)
    event = decode_as(thin[0], ExperienceProduced)
    whole = decode_as(next(each for each in before if each.head == thin[0].head), ExperienceProduced)
    assert len(event.tokens) == len(whole.tokens)
    assert event.reward == whole.reward
    with pytest.raises(NotFoundError, match="were dropped"):
        event.tokens.view()
    with pytest.raises(NotFoundError, match="were dropped"):
        event.tokens.loaded(lambda sha256: b"")
    assert (await drop_all(log, run.id)).records == 0, "a second time there is nothing to do"
    back = [await bring_back(log, each.partition, {each.offset: each.value}) for each in before]
    assert sum(each.records for each in back) == len(thin)
    assert await everything(log) == before
    await log.close()


async def test_what_is_brought_back_must_be_what_the_chain_covers(tmp_path: Path) -> None:
    recorder, experiment = Recorder(), derive(NAMESPACE, "experiment")
    drafts = [experience(number, experiment, recorder) for number in range(16)]
    log = await SqliteLog.open(tmp_path)
    places = await log.append(drafts)
    first = places[0].partition
    await drop_at(log, [(first.number, 0), (first.number, 3)])
    assert [record.thin for record in await log.read(first, 0)][:4] == [True, False, False, True]
    event = decode_as(recorder.records[0], ExperienceProduced)
    forged = encode_value(msgspec.structs.replace(event, tokens=Array.of(event.tokens.view() + 1, "u4")))
    with pytest.raises(LogCorruptError, match=r"rftd\.experiences/\d@0 is not the record"):
        await bring_back(log, first, {0: forged})
    await log.append([experience(99, experiment, recorder)])  # the refusal leaves a log that works
    await bring_back(log, first, {0: drafts[0].value})
    record = (await log.read(first, 0, max_records=1))[0]
    assert record.value == drafts[0].value
    assert not record.thin
    await log.close()
    assert scan_chain(tmp_path).records == 17


async def test_the_space_goes_back_to_the_file_system_and_damage_is_still_seen(tmp_path: Path) -> None:
    recorder, experiment = Recorder(), derive(NAMESPACE, "experiment")
    drafts = [experience(number, experiment, recorder) for number in range(1600)]
    log = await SqliteLog.open(tmp_path / "log")
    for start in range(0, len(drafts), 64):
        await log.append(drafts[start : start + 64])
    view = await SqliteView.open(tmp_path / "log")
    size_bytes = sum(draft.size_bytes for draft in drafts)
    places: list[tuple[int, int]] = []
    by_partition: dict[Partition, int] = {}
    for draft in drafts:
        offset = by_partition.get(draft.partition, 0)
        by_partition[draft.partition] = offset + 1
        places.append((draft.partition.number, offset))
    used_bytes = await log.used_bytes()
    dropped = await drop_at(log, places)
    assert dropped.records == 1600
    assert dropped.size_bytes > 0.9 * size_bytes
    assert await log.used_bytes() < used_bytes / 4, "as soon as they went, before the file shrinks"
    assert await drop_at(log, places) == Dropped(0, 0, before=1600)
    await give_back(log)
    assert all(record.thin for record in await everything(view))
    await view.close()
    await log.close()
    path = tmp_path / "log" / "log.db"
    assert path.stat().st_size < size_bytes / 8
    assert scan_chain(tmp_path / "log").records == 1600
    data = path.read_bytes()
    refused = 0
    for at in np.random.default_rng(2).integers(data.index(b"dropped:"), len(data), 40):
        shutil.copytree(tmp_path / "log", tmp_path / "bad")
        (tmp_path / "bad" / "log.db").write_bytes(data[:at] + bytes([data[at] ^ 8]) + data[at + 1 :])
        try:
            assert scan_chain(tmp_path / "bad").records == 1600
        except LogCorruptError:
            refused += 1
        shutil.rmtree(tmp_path / "bad")
    assert refused > 30, "the others hit what no record uses"


@pytest.mark.parametrize("tokens", [320, 700, 1400, 1650, 2500, 6000])
async def test_a_log_takes_little_more_than_its_payload(tmp_path: Path, tokens: int) -> None:
    recorder, experiment = Recorder(), derive(NAMESPACE, "experiment")
    log = await SqliteLog.open(tmp_path)
    size_bytes = 0
    for start in range(0, 640, 64):
        drafts = [experience(number, experiment, recorder, tokens) for number in range(start, start + 64)]
        size_bytes += sum(draft.size_bytes for draft in drafts)
        await log.append(drafts)
    await log.close()
    assert (tmp_path / "log.db").stat().st_size <= 1.15 * size_bytes + 30 * 16384  # an empty log has 25 pages


CHECKPOINTER = """
import fcntl, sys
with open(sys.argv[1], "r+b") as shm:
    fcntl.lockf(shm, fcntl.LOCK_EX, 1, 121)
    print("locked", flush=True)
    sys.stdin.read()
"""
"""Holds the lock of checkpoints, as the log's own checkpointer may at any moment; see "WAL-index locks" of SQLite."""


async def test_space_goes_back_while_a_checkpointer_is_at_work(tmp_path: Path) -> None:
    recorder, experiment = Recorder(), derive(NAMESPACE, "experiment")
    log = await SqliteLog.open(tmp_path / "log")
    await log.append([experience(number, experiment, recorder) for number in range(64)])
    command = [sys.executable, "-c", CHECKPOINTER, str(tmp_path / "log" / "log.db-shm")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        await give_back(log)
        await log.append([experience(99, experiment, recorder)])
        process.stdin.close()
    await log.close()
    assert scan_chain(tmp_path / "log").records == 65
