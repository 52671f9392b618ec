"""An engine that failed for good ends its explorer with the reason; the next one opens another: no rollout fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rftd.ops.errors import WorkError
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.log import EventLog
from rftd.workers.rollout.engine import EngineStats, Generation, GenerationRequest
from rftd.workers.rollout.engines.fake import FakeRolloutEngine

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("log", ["sqlite"], indirect=True)]


def failing(monkeypatch: pytest.MonkeyPatch, *, after: int) -> list[FakeRolloutEngine]:
    """The fake engines from now on; the first answers nothing after so many requests, and says that it hangs."""
    engines: list[FakeRolloutEngine] = []
    asked = 0
    opened, generate, stats = FakeRolloutEngine.__init__, FakeRolloutEngine.generate, FakeRolloutEngine.stats

    def made(self: FakeRolloutEngine, *given: Any) -> None:
        opened(self, *given)
        engines.append(self)

    async def drawn(self: FakeRolloutEngine, request: GenerationRequest) -> Generation:
        nonlocal asked
        asked += 1
        if self is engines[0] and asked > after:
            await asyncio.Event().wait()
        return await generate(self, request)

    def told(self: FakeRolloutEngine) -> EngineStats:
        error = "it hangs" if self is engines[0] and asked > after else ""
        return msgspec.structs.replace(stats(self), error=error)

    monkeypatch.setattr(FakeRolloutEngine, "__init__", made)
    monkeypatch.setattr(FakeRolloutEngine, "generate", drawn)
    monkeypatch.setattr(FakeRolloutEngine, "stats", told)
    return engines


async def driven(log: EventLog, spec: Any, clock: Any, ids: Any, fake_world: Any) -> RunState:
    state: RunState = await fake_world.completed(log, spec, clock, ids)
    report = await fake_world.verified(log)
    assert report.clean, report.findings
    return state


async def test_no_rollout_fails_by_an_engine_that_hangs(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = failing(monkeypatch, after=20)
    state = await driven(log, fake_world.spec(tmp_path), clock, ids, fake_world)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    assert len(engines) > 1
    left = [gone for gone in state.roster.gone.values() if gone.code]
    assert [(gone.code, gone.reason) for gone in left] == [(WorkError.code, left[0].reason)]
    assert "the rollout engine failed: it hangs" in left[0].reason
    assert state.replay_buffer.books.failed_rollouts == 0
