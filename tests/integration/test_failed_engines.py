"""An engine that failed for good ends its explorer with the reason; the next one opens another: no rollout fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from synthetic.daemon.third_party import install
from synthetic.log.log_reading import read_decoded

from rftd.ops.errors import RolloutError, WorkError
from rftd.streams.events.experience import EvalScored
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.log.log import EventLog
from rftd.streams.spec.engines import AuxiliarySpec
from rftd.workers.engines.fake.rollout import FakeArgs, FakeRolloutEngine
from rftd.workers.generation.engine import EngineStats, Generation, GenerationRequest

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("log", ["sqlite"], indirect=True)]


def failing(
    monkeypatch: pytest.MonkeyPatch, *, after: int, skill: float, answers: bool = False
) -> list[FakeRolloutEngine]:
    """The fake engines of that skill from now on; the first fails after so many requests: it hangs, or raises."""
    engines: list[FakeRolloutEngine] = []
    asked = 0
    opened, generate, stats = FakeRolloutEngine.__init__, FakeRolloutEngine.generate, FakeRolloutEngine.stats

    def failed(self: FakeRolloutEngine) -> bool:
        return self in engines[:1] and asked > after

    def made(self: FakeRolloutEngine, *given: Any) -> None:
        opened(self, *given)
        if self._args.skill == skill:
            engines.append(self)

    async def drawn(self: FakeRolloutEngine, request: GenerationRequest) -> Generation:
        nonlocal asked
        asked += self in engines
        if failed(self):
            if answers:
                raise RolloutError("it died")
            await asyncio.Event().wait()
        return await generate(self, request)

    def told(self: FakeRolloutEngine) -> EngineStats:
        return msgspec.structs.replace(stats(self), error="it is gone" if failed(self) else "")

    monkeypatch.setattr(FakeRolloutEngine, "__init__", made)
    monkeypatch.setattr(FakeRolloutEngine, "generate", drawn)
    monkeypatch.setattr(FakeRolloutEngine, "stats", told)
    return engines


async def events(log: EventLog) -> list[Any]:
    return [record.event for record in await read_decoded(log)]


async def driven(log: EventLog, spec: Any, clock: Any, ids: Any, fake_world: Any) -> RunState:
    state: RunState = await fake_world.completed(log, spec, clock, ids)
    report = await fake_world.verified(log)
    assert report.clean, report.findings
    return state


def check_ended_by(state: RunState, reason: str) -> None:
    """One explorer ended for that reason, no rollout failed, and the run went on to its end."""
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    (left,) = [gone for gone in state.roster.gone.values() if gone.code]
    assert left.code == WorkError.code
    assert f"{reason} failed: it is gone" in left.reason
    assert state.replay_buffer.books.failed_rollouts == 0


async def test_no_rollout_fails_by_an_engine_that_hangs(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = failing(monkeypatch, after=20, skill=FakeArgs().skill)
    state = await driven(log, fake_world.spec(tmp_path), clock, ids, fake_world)
    check_ended_by(state, "the rollout engine")
    assert len(engines) > 1


ASKING = """
from rftd.workers.api import Message, RewardResult
class Asking:
    async def score(self, response, truth, task, *, auxiliary_models):
        answer = await auxiliary_models[0].chat([Message("user", task.prompt)])
        return RewardResult(value=float(bool(answer.text) and response == truth))
"""


@pytest.mark.parametrize("answers", [True, False], ids=["it raises", "it hangs"])
async def test_no_rollout_and_no_evaluation_fails_by_an_auxiliary_engine_that_died(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    install(tmp_path, "asking_reward", ASKING, {"rftd.rewards": {"asking": "asking_reward:Asking"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    engines = failing(monkeypatch, after=20, skill=1.0, answers=answers)
    spec = fake_world.spec(tmp_path)
    judge = AuxiliarySpec(
        name="judge",
        engine="fake",
        max_model_len=64,
        max_prompt_tokens=32,
        max_response_tokens=32,
        engine_args={"skill": 1.0},
    )
    stage = spec.stages[1]
    taskset, *evals = [msgspec.structs.replace(each, reward="asking") for each in (stage.taskset, *stage.evals)]
    stage = msgspec.structs.replace(stage, taskset=taskset, evals=tuple(evals), auxiliary=(judge,))
    state = await driven(log, msgspec.structs.replace(spec, stages=(spec.stages[0], stage)), clock, ids, fake_world)
    check_ended_by(state, "the engine of the auxiliary model 'judge'")
    assert len(engines) == 2
    scored = [event for event in await events(log) if isinstance(event, EvalScored)]
    assert scored
    assert not [each for each in scored if each.metrics["failed_rows"]]
