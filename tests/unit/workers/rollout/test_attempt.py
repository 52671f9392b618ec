"""How long a rollout can last: its attempts, each with its time-out, and nothing multiplies them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from synthetic.worlds.desk import lease_of

from rftd.ops.clock import SystemClock
from rftd.ops.errors import RolloutError, RolloutTimeoutError
from rftd.ops.logs import logger
from rftd.storage.artifacts import ArtifactStore
from rftd.streams.events.experience import RolloutFailed
from rftd.streams.spec import RolloutSpec
from rftd.workers.rollout.attempt import Attempts
from rftd.workers.rollout.orphans import Orphans


class Runner:
    """Every attempt waits for ever, or fails at once."""

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.began = self.cancelled = 0

    async def run(self, *_: object, **__: object) -> None:
        self.began += 1
        if self.fails:
            raise RolloutError("no")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class Rows:
    digest = "d"

    def task(self, row: int, epoch: int) -> Any:
        return type("Row", (), {"where": f"row {row}"})()


async def ended(
    folder: Path, runner: Runner, *, max_s: float, timeout_s: float, threads: bool = False
) -> RolloutFailed:
    attempts = Attempts(
        cast(Any, runner),
        RolloutSpec(max_timeout_s=max_s, max_retry_times=2, threads_each=threads),
        artifacts=ArtifactStore(folder),
        seed=1,
        clock=SystemClock(),
        orphans=Orphans(logger()),
    )
    lease = lease_of(UUID(int=3), rollouts=(0,), repeat_times=1, timeout_s=timeout_s)
    async with asyncio.timeout(30):
        event = await attempts.run(lease, 0, cast(Any, Rows()))
    assert isinstance(event, RolloutFailed)
    return event


@pytest.mark.anyio
@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize(("max_s", "timeout_s"), [(0.02, 0.0), (600.0, 0.02)])
async def test_a_rollout_fails_for_good_after_its_attempts(
    tmp_path: Path, max_s: float, timeout_s: float, threads: bool
) -> None:
    """The lease's time-out holds where it has one, else the stage's."""
    runner = Runner(fails=False)
    failed = await ended(tmp_path, runner, max_s=max_s, timeout_s=timeout_s, threads=threads)
    assert (runner.began, runner.cancelled) == (3, 3)
    assert failed.code == RolloutTimeoutError.code
    assert "0.02 s" in failed.reason


@pytest.mark.anyio
async def test_an_error_is_tried_as_often(tmp_path: Path) -> None:
    runner = Runner(fails=True)
    failed = await ended(tmp_path, runner, max_s=600.0, timeout_s=0.0)
    assert runner.began == 3
    assert failed.code == RolloutError.code


def test_a_group_with_a_greedy_rollout_does_not_ask_together(tmp_path: Path) -> None:
    """For together all of them are drawn in the same way."""
    runner = cast(Any, type("Asks", (), {"together": lambda *_: "all at once"})())
    made = [
        Attempts(
            runner,
            RolloutSpec(),
            artifacts=ArtifactStore(tmp_path),
            seed=1,
            clock=SystemClock(),
            orphans=Orphans(logger()),
            greedy_rollouts=greedy,
        )
        for greedy in (0, 1)
    ]
    lease = cast(Any, type("Lease", (), {"row": 0, "epoch": 0})())
    assert [each.together(lease, cast(Any, Rows())) for each in made] == ["all at once", None]
