"""The rollouts of a lease as one piece of work leave what they would leave one by one, whatever each ends with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
import numpy as np
import pytest
from synthetic.worlds.desk import lease_of

from rftd.ops.clock import SystemClock
from rftd.ops.errors import RolloutError, RolloutTimeoutError
from rftd.ops.logs import logger
from rftd.storage.artifacts import ArtifactStore
from rftd.streams.events.experience import ExperienceProduced, RolloutFailed, Span
from rftd.streams.spec import FormatSpec, ModelSpec, RolloutSpec, TasksetSpec
from rftd.workers.rollout.attempt import Attempts
from rftd.workers.rollout.engine import Answers, EngineStats, Generation, GenerationRequest
from rftd.workers.rollout.orphans import Orphans
from rftd.workers.rollout.workflows.runner import WorkflowRunner
from rftd.workers.tasksets.byte_tokenizer import ByteTokenizer
from rftd.workers.tasksets.task import Task, make_task
from rftd.workers.weights.channel import WeightsRef

pytestmark = pytest.mark.anyio
LEASE = lease_of(UUID(int=3), sequence=7, row=4)


class Script:
    """Answers with digits that follow from the seed; the requests of `fails` raise, those of `hangs` never end."""

    version = (0, 0)

    def __init__(self, *, fails: int = 0, hangs: int = 0) -> None:
        self.asked: list[GenerationRequest] = []
        self.left = 0
        self.fails, self.hangs = fails, hangs

    def answer(self, request: GenerationRequest) -> Generation | RolloutError:
        self.asked.append(request)
        if self.fails:
            self.fails -= 1
            return RolloutError("no room")
        tokens = tuple(str(np.random.default_rng(request.sampling.seed).integers(10, 99)).encode())
        return Generation(tokens=tokens, logprobs=(-1.0, -0.5), spans=(Span(0, 0, 0, 2),), finish="length")

    async def generate(self, request: GenerationRequest) -> Generation:
        answer = self.answer(request)
        if isinstance(answer, RolloutError):
            raise answer
        return answer

    @asynccontextmanager
    async def generate_each(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Answers]:
        done = [(number, self.answer(request)) for number, request in enumerate(requests)]
        given = Given(done[: len(done) - self.hangs], hangs=bool(self.hangs))
        try:
            yield given
        finally:
            self.left += 1

    async def load_weights(self, weights: WeightsRef) -> str:
        return weights.checksum

    def stats(self) -> EngineStats:
        return EngineStats(tokens_total=0, requests_total=0, running=0, waiting=0)

    async def close(self) -> None:
        return None


class Given:
    """One answer at a time, the last first."""

    def __init__(self, done: list[tuple[int, Generation | RolloutError]], *, hangs: bool) -> None:
        self._done, self._hangs = done, hangs

    async def some(self) -> list[tuple[int, Generation | RolloutError]]:
        if not self._done and self._hangs:
            await asyncio.Event().wait()
        return [self._done.pop()] if self._done else []


class Rows:
    digest = "d"

    def task(self, row: int, epoch: int) -> Task:
        return make_task({"prompt": "6*7=", "response": "42"}, spec=SPEC, row=row)


SPEC = TasksetSpec(
    name="t",
    path="p",
    workflow="simple_workflow",
    reward="exact_match_reward",
    format=FormatSpec(prompt_type="plaintext"),
)


def attempts(engine: Script, folder: Path, *, model: ModelSpec | None = None, max_s: float = 600.0) -> Attempts:
    model = model or ModelSpec(path="m", max_model_len=64, max_prompt_tokens=48, max_response_tokens=8)
    return Attempts(
        WorkflowRunner(SPEC, model=model, engine=engine, tokenizer=ByteTokenizer()),
        RolloutSpec(max_timeout_s=max_s, max_retry_times=1),
        artifacts=ArtifactStore(folder),
        seed=1,
        clock=SystemClock(),
        orphans=Orphans(logger()),
    )


async def each(made: Attempts) -> dict[int, ExperienceProduced | RolloutFailed]:
    together = made.together(LEASE, cast(Any, Rows()))
    assert together is not None
    async with asyncio.timeout(30), aclosing(made.run_each(LEASE, LEASE.rollouts, together)) as events:
        found = [event async for some in events for event in some]
    assert len(found) == len(LEASE.rollouts)
    return {event.rollout: event for event in found}


def undated(event: object) -> object:
    assert isinstance(event, ExperienceProduced), event
    return msgspec.structs.replace(event, duration_s=0.0)


async def test_they_leave_what_each_would_leave_alone(tmp_path: Path) -> None:
    one, other = Script(), Script()
    found = await each(attempts(one, tmp_path))
    alone = attempts(other, tmp_path)
    for rollout in LEASE.rollouts:
        assert undated(found[rollout]) == undated(await alone.run(LEASE, rollout, cast(Any, Rows())))
    assert one.asked == other.asked
    assert len({request.sampling.seed for request in one.asked}) == 4
    assert one.left == 1


async def test_what_fails_is_tried_again_and_nothing_else(tmp_path: Path) -> None:
    engine = Script(fails=2)
    found = await each(attempts(engine, tmp_path))
    assert all(isinstance(event, ExperienceProduced) for event in found.values())
    assert [request.id for request in engine.asked[4:]] == [engine.asked[number].id for number in (0, 1)]


async def test_after_its_attempts_each_fails_by_itself(tmp_path: Path) -> None:
    engine = Script(fails=6)
    found = await each(attempts(engine, tmp_path))
    failed = {rollout: event for rollout, event in found.items() if isinstance(event, RolloutFailed)}
    assert set(failed) == {0, 1}
    assert all(
        event.code == RolloutError.code and "no room" in event.reason and "row 4" in event.reason
        for event in failed.values()
    )


async def test_those_that_do_not_end_in_time_time_out_and_the_others_are_there(tmp_path: Path) -> None:
    engine = Script(hangs=1)
    found = await each(attempts(engine, tmp_path, max_s=0.05))
    late = found.pop(3)
    assert isinstance(late, RolloutFailed)
    assert late.code == RolloutTimeoutError.code
    assert "0.05 s" in late.reason
    assert all(isinstance(event, ExperienceProduced) for event in found.values())
    assert engine.left == 2
    assert len(engine.asked) == 5


@pytest.mark.parametrize("cut", [True, False])
async def test_a_prompt_that_does_not_fit_is_not_asked(tmp_path: Path, cut: bool) -> None:
    model = ModelSpec(
        path="m", max_model_len=64, max_prompt_tokens=2, max_response_tokens=8, enable_prompt_truncation=cut
    )
    engine = Script()
    found = await each(attempts(engine, tmp_path, model=model))
    assert not engine.asked
    for event in found.values():
        if cut:
            assert isinstance(event, ExperienceProduced)
            assert event.finish == "prompt_truncated"
            assert event.reward == 0
        else:
            assert isinstance(event, RolloutFailed)
            assert "the limit is 2" in event.reason
