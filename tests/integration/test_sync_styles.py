"""Synchronisation styles with real roles: which weights each explore step ran on, also if everybody dies in between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.until import until

from rftd.daemon.run.supervisor.run import Run
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.streams.events.registry import Event
from rftd.streams.events.task import TaskLeased
from rftd.streams.events.weights import WeightsAnswered, WeightsRequested
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import TOPICS, Partition
from rftd.streams.spec.schedule import needed_staleness, step_of_window, window_steps
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import PolicySpec

GROUPS = 4
"""Of an explore step."""
FIRST = 3
"""The version with which the explored stage begins."""


def styled(sync: Synchronizer) -> dict[str, Any]:
    """The GRPO stage's fields: the bound is the least that the schedule needs."""
    window = window_steps(sync, 0)
    inflight = window if sync.sync_style == "fixed" else max(2, window)
    return {
        "synchronizer": sync,
        "policy": PolicySpec(max_staleness_versions=needed_staleness(sync), max_inflight_batches=inflight),
    }


async def events_of(log: EventLog, experiment: UUID) -> list[Event]:
    """Every event of spine, tasks and weights, partition by partition."""
    found: list[Event] = []
    for stream in (topics.EXPERIMENTS, topics.TASKS, topics.WEIGHTS):
        for number in range(TOPICS[stream].partitions):
            for record in await log.read(Partition(stream, number), 0, max_records=10_000):
                decoded = decode(record)
                if decoded.head.experiment == experiment:
                    found.append(decoded.event)
    return found


def windows_of(events: list[Event]) -> dict[int, tuple[set[int], int]]:
    """Per window the versions that its groups were begun on, and how many groups."""
    begun: dict[int, dict[UUID, int]] = {}
    for event in events:
        if isinstance(event, TaskLeased):
            assert event.window >= 0
            begun.setdefault(event.window, {}).setdefault(event.group, event.min_version)
    return {window: (set(groups.values()), len(groups)) for window, groups in sorted(begun.items())}


async def checked(log: EventLog, state: RunState, fake_world: Any, sync: Synchronizer) -> list[Event]:
    """The run ended well, and each of its experiences was made by the version of its window."""
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    report = await fake_world.verified(log)
    assert report.clean, report.findings
    events = await events_of(log, state.experiment)
    windows = windows_of(events)
    assert list(windows) == list(range(len(windows)))
    for window, (versions, groups) in windows.items():
        assert len(versions) == 1, (window, versions)
        assert groups <= window_steps(sync, window) * GROUPS
        if sync.sync_style == "fixed":
            assert versions == {FIRST + step_of_window(sync, window)}
    return events


STYLES = [
    Synchronizer(
        sync_method="checkpoint", sync_style="fixed", sync_offset=1, explorer_sync_interval=1, trainer_sync_interval=2
    ),
    Synchronizer(sync_method="checkpoint", sync_style="fixed", explorer_sync_interval=2, trainer_sync_interval=1),
    Synchronizer(
        sync_method="checkpoint", sync_style="trainer_driven", explorer_sync_interval=1, trainer_sync_interval=2
    ),
    Synchronizer(sync_method="checkpoint", sync_style="explorer_driven", sync_interval=1),
    Synchronizer(sync_method="checkpoint", sync_style="explorer_driven", sync_interval=2, sync_offset=1),
]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "sync", STYLES, ids=lambda sync: f"{sync.sync_style}-{sync.explorer_sync_interval or sync.sync_interval}"
)
async def test_each_style_runs_to_its_end(
    tmp_path: Path, log: EventLog, clock: SystemClock, ids: SystemIds, fake_world: Any, sync: Synchronizer
) -> None:
    spec = fake_world.spec(tmp_path, **styled(sync))
    experiment = await fake_world.submitted(log, spec, clock, ids)
    executor = fake_world.executor(log, clock, ids)
    run = Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger())
    async with asyncio.timeout(60):
        await run.drive()
    state = run.state
    events = await checked(log, state, fake_world, sync)
    assert not state.replay_buffer.books.retired, "nothing was made in vain"
    asked = [event for event in events if isinstance(event, WeightsRequested)]
    assert bool(asked) == (sync.sync_style == "explorer_driven")
    answers = {(event.window, event.number) for event in events if isinstance(event, WeightsAnswered)}
    # The last question may still be open when the stage has all that it needs.
    assert {(event.window, event.number) for event in asked[:-1]} <= answers


@pytest.mark.anyio
@pytest.mark.parametrize("sync", STYLES[:1] + STYLES[2:4], ids=lambda sync: sync.sync_style)
async def test_restarts_in_the_middle_of_a_window_change_nothing_of_the_schedule(
    tmp_path: Path, log: EventLog, clock: SystemClock, ids: SystemIds, fake_world: Any, sync: Synchronizer
) -> None:
    """Daemon, trainer and explorers leave and others come, at moments that the steps decide."""
    spec = fake_world.spec(tmp_path, **styled(sync))
    experiment = await fake_world.submitted(log, spec, clock, ids)
    for version in (4, 6, 7, 9):
        executor = fake_world.executor(log, clock, ids)
        run = Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger())
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(60):
            driving = tasks.create_task(run.drive())
            await until(lambda: driving.done() or run.state.spine.version >= version)  # noqa: B023
            await run.drain()
    await checked(log, run.state, fake_world, sync)
