"""The main flow on the embedded log with fake engines: submit, explore, plan, train, publish, checkpoint, evaluate."""

from __future__ import annotations

from pathlib import Path

import pytest

from rftd.ops import limits
from rftd.streams.backends.sqlite import SqliteLog
from rftd.streams.folds.spine import Status
from rftd.streams.log import EventLog
from rftd.streams.spec import AlgorithmSpec, PolicySpec


@pytest.mark.anyio
async def test_two_stages_run_to_their_end(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> None:
    spec = fake_world.spec(tmp_path)
    state = await fake_world.completed(log, spec, clock, ids)
    spine = state.spine
    assert spine.status is Status.COMPLETED, (spine.code, spine.reason)
    assert spine.version == 8
    assert len(spine.evaluated) == 2
    books = state.ledger.counts()
    assert books["balance"] == 0 and books["waiting"] == 0
    assert books["planned"] == 5 * 16
    report = await fake_world.verified(log)
    assert report.clean, report.findings
    assert report.experiments[0].steps == 8


@pytest.mark.anyio
@pytest.mark.parametrize(("interval", "offset"), [(1, 0), (1, 1), (2, 0)])
async def test_fixed_synchronisation_trains_on_the_weights_of_its_timeline(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, interval: int, offset: int
) -> None:
    spec = fake_world.spec(tmp_path, **fake_world.fixed(interval, offset))
    state = await fake_world.completed(log, spec, clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    assert sum(state.ledger.books.retired.values()) == 0
    assert (await fake_world.verified(log)).clean


@pytest.mark.anyio
@pytest.mark.parametrize("style", ["fixed", "fully_async"])
async def test_groups_that_teach_nothing_are_replaced(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, style: str
) -> None:
    algorithm = AlgorithmSpec(
        kind="grpo", repeat_times=4, advantage="grpo", advantage_args={"std_threshold": 0.0}, policy_loss="ppo"
    )
    timeline = fake_world.fixed(1, 0) if style == "fixed" else {}
    spec = fake_world.spec(tmp_path, algorithm=algorithm, **timeline)
    state = await fake_world.completed(log, spec, clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    books = state.ledger.counts()
    assert books["planned"] == 5 * 16 and books["balance"] == 0
    assert state.ledger.books.retired["uninformative"] % 4 == 0 < state.ledger.books.retired["uninformative"]
    assert (await fake_world.verified(log)).clean


@pytest.mark.anyio
async def test_arrays_too_large_for_an_event_travel_by_reference(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INLINE_ARRAY_SIZE_BYTES", 0)
    spec = fake_world.spec(tmp_path)
    state = await fake_world.completed(log, spec, clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    assert any((Path(spec.job_dir) / "artifacts").rglob("*"))
    assert (await fake_world.verified(log)).clean


@pytest.mark.anyio
@pytest.mark.parametrize("interval", [1, 2])
async def test_a_deterministic_run_repeats_itself(tmp_path: Path, clock, ids, fake_world, interval: int) -> None:
    finals = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        log = await SqliteLog.open(folder / "log")
        in_order = PolicySpec(kind="in_order", max_staleness_versions=interval - 1, max_inflight_batches=1)
        spec = fake_world.spec(folder, **(fake_world.fixed(interval, 0) | {"policy": in_order}))
        state = await fake_world.completed(log, spec, clock, ids)
        assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
        finals.append([state.spine.checksums[version, 0] for version in range(1, 9)])
        await log.close()
    assert finals[0] == finals[1]
