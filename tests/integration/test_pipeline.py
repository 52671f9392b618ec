"""The experience pipeline between finished groups and the replay buffer, in whole runs with fake engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synthetic.daemon.third_party import install

from rftd.ops import limits
from rftd.ops.errors import PipelineError
from rftd.streams.events.experience import GroupProcessed
from rftd.streams.events.step import StepCompleted
from rftd.streams.events.task import GroupClosed, GroupLeased
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.log import EventLog
from rftd.streams.spec.engines import AuxiliarySpec
from rftd.streams.spec.spec import RolloutSpec
from rftd.streams.spec.stage_parts import OperatorSpec
from rftd.workers.rollout.processing import GroupProcessing

pytestmark = pytest.mark.anyio
HALF_RIGHT = RolloutSpec(engine="fake", concurrency=8, max_timeout_s=20.0, engine_args={"skill": 0.5, "gain": 0.0})
OPERATORS_CODE = """
import msgspec
from rftd.workers.api import Message


class AddsTen:
    def process(self, experiences):
        changed = [msgspec.structs.replace(e, reward=e.reward + 10, masked=e.rollout == 0) for e in experiences]
        return changed, {"seen": len(experiences)}


class Picky:
    def process(self, experiences):
        if experiences[0].produced.group.int % 3 == 0:
            raise ValueError("not this one")
        return experiences, {}


class Asks:
    async def ask(self, experiences, context):
        [judge] = context.models
        ids = experiences[0].produced.tokens.view().tolist()
        answer = await judge.chat([Message("user", context.decode(ids))])
        return [msgspec.structs.replace(e, reward=0.5) for e in experiences], {"chars": len(answer.text)}
"""


async def events_of(log: EventLog, kind: type[Any]) -> list[Any]:
    """Every event of a type."""
    found: list[Any] = []
    for partition in topics.EVERY_PARTITION:
        for record in await log.read(partition, 0, max_records=10_000):
            if isinstance(event := decode(record).event, kind):
                found.append(event)
    return found


async def test_dropped_experiences_are_retired_and_the_books_balance(
    tmp_path: Path, log, clock, ids, fake_world
) -> None:
    spec = fake_world.spec(
        tmp_path, rollout=HALF_RIGHT, pipeline=(OperatorSpec(name="reward_filter", args={"threshold": 0.5}),)
    )
    state = await fake_world.completed(log, spec, clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    counts = state.replay_buffer.counts()
    assert counts["balance"] == 0
    assert counts["waiting"] == 0
    assert counts["planned"] == 5 * 16
    closed = [event for event in await events_of(log, GroupClosed) if event.verdicts]
    dropped = sum(verdict.dropped_by >= 0 for event in closed for verdict in event.verdicts)
    assert dropped > 0
    retired = state.replay_buffer.books.retired
    assert retired["filtered by reward_filter"] == dropped
    leased = await events_of(log, GroupLeased)
    processed = await events_of(log, GroupProcessed)
    assert len(leased) == len(processed) >= len(closed)
    report = await fake_world.verified(log)
    assert report.clean, report.findings


async def test_shaped_rewards_and_masks_reach_the_trainer(tmp_path: Path, log, clock, ids, fake_world) -> None:
    install(tmp_path, "own_operators", OPERATORS_CODE, {"rftd.operators": {"adds_ten": "own_operators:AddsTen"}})
    spec = fake_world.spec(tmp_path, rollout=HALF_RIGHT, pipeline=(OperatorSpec(name="adds_ten"),))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        state = await fake_world.completed(log, spec, clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    steps = [event for event in await events_of(log, StepCompleted) if event.stage == 1]
    assert len(steps) == 5
    for step in steps:
        assert step.metrics["critic/rewards/min"] >= 10.0
        assert step.metrics["experience_pipeline/adds_ten/seen"] == 4.0
        assert 0 < step.tokens < 5 * 16 * 8
    closed = [event for event in await events_of(log, GroupClosed) if event.verdicts]
    assert all(member.reward < 10.0 for event in closed for member in event.members), "the produced rewards are kept"
    assert all(verdict.reward >= 10.0 for event in closed for verdict in event.verdicts)
    report = await fake_world.verified(log)
    assert report.clean, report.findings


async def test_answers_of_a_judge_asked_by_an_operator_are_recorded(
    tmp_path: Path, log, clock, ids, fake_world
) -> None:
    install(tmp_path, "own_operators", OPERATORS_CODE, {"rftd.operators": {"asks": "own_operators:Asks"}})
    judge = AuxiliarySpec(name="judge", engine="fake", max_model_len=128, max_prompt_tokens=96, max_response_tokens=32)
    spec = fake_world.spec(tmp_path, rollout=HALF_RIGHT, pipeline=(OperatorSpec(name="asks"),), auxiliary=(judge,))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        state = await fake_world.completed(log, spec, clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    processed = await events_of(log, GroupProcessed)
    assert processed and not any(event.reason for event in processed), processed[0].reason
    for event in processed:
        [turn] = event.auxiliary
        assert (turn.model, float(turn.chars)) == ("judge", event.metrics["asks/chars"])
        assert {verdict.reward for verdict in event.verdicts} == {0.5}
    report = await fake_world.verified(log)
    assert report.clean, report.findings


async def test_a_failing_operator_closes_its_group_as_a_dead_letter(
    tmp_path: Path, log, clock, ids, fake_world
) -> None:
    install(tmp_path, "own_operators", OPERATORS_CODE, {"rftd.operators": {"picky": "own_operators:Picky"}})
    spec = fake_world.spec(tmp_path, rollout=HALF_RIGHT, pipeline=(OperatorSpec(name="picky"),))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        state = await fake_world.completed(log, spec, clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    closed = await events_of(log, GroupClosed)
    failed = [event for event in closed if event.code == PipelineError.code]
    assert failed
    assert {(len(event.members), event.failed) for event in failed} == {(0, 4)}
    assert all("operator 'picky' raised ValueError: not this one" in event.reason for event in failed)
    assert state.replay_buffer.counts()["balance"] == 0
    report = await fake_world.verified(log)
    assert report.clean, report.findings


async def test_an_operator_that_ends_its_worker_fails_its_group_only(
    tmp_path: Path, log, clock, ids, fake_world
) -> None:
    """Leases of a killed explorer are given out again, and a group that no explorer finishes is closed."""
    spec = fake_world.spec(tmp_path, rollout=HALF_RIGHT, pipeline=(OperatorSpec(name="reward_filter"),))
    killed: list[GroupLeased] = []
    run_group = GroupProcessing.run

    async def dies(processing: GroupProcessing, lease: GroupLeased) -> None:
        if not killed or lease.group == killed[0].group:
            killed.append(lease)
            raise RuntimeError("the operator ended the process")
        await run_group(processing, lease)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupProcessing, "run", dies)
        patch.setattr(limits, "PIPELINE_ATTEMPTS", 3)
        state = await fake_world.completed(log, spec, clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    assert len(killed) == 3
    assert [lease.attempt for lease in killed] == [1, 2, 3]
    [failed] = [event for event in await events_of(log, GroupClosed) if event.code == PipelineError.code]
    assert failed.group == killed[0].group
    assert "no explorer finished it in 3 attempts" in failed.reason
    report = await fake_world.verified(log)
    assert report.clean, report.findings
