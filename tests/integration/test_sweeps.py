"""Sweeps as any client may send them: what is refused leaves nothing in the log, and one bad run holds up no other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
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
from rftd.streams.verify.checker import verify

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
        ([(("mode",), "explore")], {}, "half of an experiment cannot be a run of a sweep"),
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
    with pytest.raises(ConflictError, match="exists already"):
        await submit(supervisor, file, point(), key=UUID(int=7), name="sums")
    with pytest.raises(UsageError, match="leads nowhere"):
        await submit(supervisor, file, point((("a", "b"), 1)), key=UUID(int=8))


async def over(supervisor: Supervisor) -> StandingSweep:
    """The sweep once all of its runs have ended."""
    making = asyncio.ensure_future(supervisor.make_sweeps())
    try:
        async with asyncio.timeout(120):
            standing = await supervisor.sweep_named("sums")
            while not standing.over:
                await asyncio.sleep(0.1)
                standing = await supervisor.sweep_named("sums")
    finally:
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)
    return standing


RATE = ("algorithm", "optimizer", "lr")


async def test_runs_of_one_base_share_one_evaluation_of_it(desk: ForkDesk) -> None:
    file = config(desk)
    runs = [msgspec.structs.replace(point((RATE, rate)), settings={"rate": str(rate)}) for rate in (0.1, 0.2, 0.3, 0.4)]
    async with desk.open() as supervisor:
        standing = await submit(supervisor, file, *runs, at_once=4)
        assert standing.sweep.submitted.one_base
        standing = await over(supervisor)
        assert [run.status.value for run in standing.runs] == ["completed"] * 4
        entries = (await supervisor.known()).entries
        first, *others = [entries[run.experiment] for run in standing.runs]
        assert first.spine.forked is None
        for entry in others:
            assert entry.spine.forked is not None
            assert (entry.spine.forked.parent, entry.spine.forked.at_step) == (first.id, 0)
            assert entry.spine.forked.evaluated == (0,)
            assert list(entry.scores["held"]) == [2], "of its own weights alone"
    report = await verify(desk.log)
    assert not report.findings, report.findings


async def test_runs_of_several_models_evaluate_by_themselves(desk: ForkDesk) -> None:
    file = config(desk)
    rated = msgspec.structs.replace(point((RATE, 0.1)), settings={"rate": "3"})
    model = point((("model", "model_path"), "other"), seed=1)
    other = msgspec.structs.replace(model, settings={"rate": "2"})
    standing = await submit(desk.idle(desk.log), file, point(), other)
    assert not standing.sweep.submitted.one_base
    standing = await submit(desk.idle(desk.log), file, point(), point(seed=1), key=UUID(int=7))
    assert not standing.sweep.submitted.one_base, "fake weights depend on the seed"
    decided = {**file, "trainer": {**file["trainer"], "early_stop": {"patience": 2}}}
    standing = await submit(desk.idle(desk.log), decided, point(), rated, key=UUID(int=6))
    assert not standing.sweep.submitted.one_base, "decisions look at the base as well"


async def test_a_run_whose_rows_went_meanwhile_is_left_out_on_record(desk: ForkDesk) -> None:
    other = desk.folder / "other.jsonl"
    other.write_text((desk.folder / "train.jsonl").read_text())
    async with desk.open() as supervisor:
        file = config(desk)
        standing = await submit(supervisor, file, point(), point((ROWS, str(other)), seed=1), point(seed=2), at_once=1)
        other.unlink()
        standing = await over(supervisor)
    assert [(run.point, run.status.value) for run in standing.runs] == [(0, "completed"), (2, "completed")]
    assert "other.jsonl" in standing.sweep.refused[1].reason
