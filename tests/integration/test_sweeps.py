"""Sweeps as any client may send them: what is refused leaves nothing in the log, and one bad run holds up no other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.daemon.fork_desk import EXPERIMENT, ForkDesk

from rftd.daemon.config.loading import load_text
from rftd.daemon.run.operations import StandingSweep, WantedSweep
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.daemon.trust.asker import AccessRole, Asker
from rftd.daemon.trust.quota import Quota, QuotaError
from rftd.ops.errors import ConflictError, ReusedKeyError, RftdError, UsageError
from rftd.ops.ids import Ids
from rftd.streams.events.sweep import FieldChange, Halving, SweepPoint
from rftd.streams.log.log import EventLog

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("log", ["sqlite"], indirect=True)]

KEY = UUID(int=5)
SHORT = ("stages=[]", "deterministic=false", "buffer.total_steps=2", "explorer.eval_interval=1000")
ROWS = ("buffer", "explorer_input", "taskset", "path")


@pytest.fixture
def desk(tmp_path: Path, log: EventLog, clock: Any, ids: Ids, fake_world: Any) -> ForkDesk:
    return ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)


def config(desk: ForkDesk) -> dict[str, Any]:
    return load_text(EXPERIMENT, "s.yaml", overrides=SHORT, environ={}, cwd=desk.folder).config


def point(*changes: tuple[tuple[str | int, ...], Any], seed: int = 42) -> SweepPoint:
    """A run of the settings that all of them have."""
    fields = tuple(FieldChange(field, value) for field, value in (*changes, (("seed",), seed)))
    return SweepPoint(name="", settings={"rate": "1"}, seed=seed, changes=fields)


async def submit(
    supervisor: Supervisor, file: dict[str, Any], *points: SweepPoint, key: UUID = KEY, **options: Any
) -> StandingSweep:
    more = {"name": None, "at_once": None, "halving": None} | options
    return (await supervisor.sweep(WantedSweep(file, points, **more), request_id=key)).standing


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ([(("model", "nothing", "deeper"), 1)], {}, "a change leads nowhere"),
        ([(("stages", 9), 1)], {}, "a change leads nowhere"),
        ([((), [1])], {}, "a change leads nowhere"),
        ([(("buffer", "batch_sizes"), 4)], {}, "batch_size"),
        ([(("model", "external_model"), {"api_key": "sk-secret-0123456789"})], {}, "api_key"),
        ([(ROWS, "/nowhere/rows.jsonl")], {}, "run 2 of the sweep"),
        ([(("mode",), "explore")], {}, "a half is no run of a sweep"),
        ([(("labels",), {"text": "x" * 3_000_000})], {}, ""),
        ([], {"name": "a/b"}, "name"),
        ([], {"halving": Halving(at=(1,), taskset="helt")}, "no held-out taskset 'helt'"),
        ([], {"halving": Halving(at=(2,), taskset="")}, "held is not evaluated at version 2"),
        ([], {"halving": Halving(at=(3, 1), taskset="")}, "its versions do not rise"),
    ],
)
async def test_a_sweep_with_one_wrong_run_leaves_nothing_behind(
    desk: ForkDesk, changes: list[Any], options: dict[str, Any], words: str
) -> None:
    supervisor = desk.idle(desk.log)
    before = await desk.log.heads()
    with pytest.raises(RftdError) as refused:
        await submit(supervisor, config(desk), point(), point(*changes, seed=43), **options)
    assert refused.value.exit_status == 2, refused.value
    assert words in str(refused.value)
    assert await desk.log.heads() == before
    assert await supervisor.sweeps() == []


async def test_a_token_sweeps_within_its_limits(desk: ForkDesk) -> None:
    asker = Asker("ann", AccessRole.SUBMIT, Quota(submissions_per_hour=2, queued=1))
    supervisor = desk.idle(desk.log).for_asker(asker)
    with pytest.raises(QuotaError, match="2 experiments an hour"):
        await submit(supervisor, config(desk), *(point(seed=seed) for seed in range(3)))
    with pytest.raises(QuotaError, match="1 experiments in the queue"):
        await submit(supervisor, config(desk), point(), point(seed=1), at_once=2)


async def test_a_key_is_one_sweep_and_names_are_free_ones(desk: ForkDesk) -> None:
    supervisor = desk.idle(desk.log)
    file = config(desk)
    first = await submit(supervisor, file, point(), point(seed=1))
    assert [run.name for run in first.sweep.points] == ["sums-1", "sums-2"]
    assert (await submit(supervisor, file, point(), point(seed=1))).sweep.id == first.sweep.id
    with pytest.raises(ReusedKeyError):
        await submit(supervisor, file, point(), point(seed=2))
    second = await submit(supervisor, file, point(), point(seed=1), key=UUID(int=6))
    assert second.sweep.name == "sums-2", "the number behind it is free, though a run is to have that name"
    with pytest.raises(ConflictError, match="is there"):
        await submit(supervisor, file, point(), key=UUID(int=7), name="sums")
    with pytest.raises(UsageError, match="leads nowhere"):
        await submit(supervisor, file, point((("a", "b"), 1)), key=UUID(int=8))


async def test_a_run_whose_rows_went_meanwhile_is_left_out_on_record(desk: ForkDesk) -> None:
    other = desk.folder / "other.jsonl"
    other.write_text((desk.folder / "train.jsonl").read_text())
    async with desk.open() as supervisor:
        file = config(desk)
        standing = await submit(supervisor, file, point(), point((ROWS, str(other)), seed=1), point(seed=2), at_once=1)
        other.unlink()
        making = asyncio.ensure_future(supervisor.make_sweeps())
        try:
            async with asyncio.timeout(120):
                while not standing.over:
                    await asyncio.sleep(0.1)
                    standing = await supervisor.sweep_named("sums")
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
    assert [(run.point, run.status.value) for run in standing.runs] == [(0, "completed"), (2, "completed")]
    assert "other.jsonl" in standing.sweep.refused[1].reason
