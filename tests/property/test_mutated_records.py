"""What decodes can be folded: thousands of mutated records of whole runs raise nothing, and nothing grows by a claim.

`make torture-records` runs a hundred thousand and more.
"""

from __future__ import annotations

import math
import tracemalloc
from typing import Any
from uuid import UUID

import pytest
from synthetic.log.mutation import mutants, whole_run
from synthetic.log.readers import fold_and_decide, of_a_log, quietly, records_of
from synthetic.log.recorder import Recorder
from synthetic.worlds.desk import REPEAT, Desk, lease_of, scores_of, stage_of

from rftd.ops.clock import ManualClock
from rftd.ops.errors import CodecError
from rftd.streams.events.catalogue import definitions
from rftd.streams.events.experience import ExperienceProduced, RolloutFailed, Span
from rftd.streams.events.experiment import ExperimentForked, StageStarted
from rftd.streams.events.task import GroupClosed
from rftd.streams.folds.groups import GroupFold
from rftd.streams.log.arrays import Array
from rftd.streams.log.codec import decode
from rftd.streams.log.deadletters import understood
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.control.closing import close_groups
from rftd.workers.control.dispatcher import Dispatcher
from rftd.workers.control.liveness import Liveness

SEEDS = range(10)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_fold_and_no_decider_raises(seed: int) -> None:
    id, drafts, made = mutants(seed)
    assert made > 100
    records = records_of(drafts)
    fold_and_decide(records, id, seed)
    quietly(records, id)


@pytest.mark.anyio
@pytest.mark.parametrize("seed", SEEDS[:3])
async def test_tables_verify_and_forks_survive_them(seed: int) -> None:
    id, drafts, _ = mutants(seed)
    await of_a_log(drafts, id, seed)


def test_every_event_type_is_mutated() -> None:
    _, recorder = whole_run(0)
    found = {decode(record).head.type for seed in range(2) for record in whole_run(seed)[1].records}
    assert found == {definition.name for definition in definitions()}, len(recorder.records)


def closed(**changes: Any) -> GroupClosed:
    return GroupClosed(**{"group": UUID(int=1), "sequence": 0, "stage": 0, "members": (), "failed": 0} | changes)


@pytest.mark.parametrize("failed", [-1, 100_001, 10**9, 1 << 62])
def test_what_cannot_be_is_not_written_and_a_dead_letter_if_it_is_there(failed: int) -> None:
    recorder = Recorder()
    id = recorder.ids.new()
    with pytest.raises(CodecError, match=r"group.closed cannot be written: .*\$\.failed"):
        recorder.write(closed(failed=failed), id)
    recorder.write(closed(failed=99_999), id)
    assert understood(recorder.records[-1]) is not None


@pytest.mark.parametrize("duration_s", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_no_duration_is_endless_or_negative(duration_s: float) -> None:
    recorder = Recorder()
    with pytest.raises(CodecError, match="duration_s"):
        recorder.write(produced(UUID(int=1), 0, duration_s=duration_s), recorder.ids.new(), key=UUID(int=1))


def test_a_fold_allocates_nothing_by_what_a_record_claims() -> None:
    groups, recorder = GroupFold(), Recorder()
    recorder.write(closed(failed=99_999), recorder.ids.new())
    decoded = decode(recorder.records[-1])
    tracemalloc.start()
    groups.apply(decoded)
    assert tracemalloc.get_traced_memory()[1] < 500_000
    tracemalloc.stop()


def produced(group: UUID, rollout: int, **changes: Any) -> ExperienceProduced:
    fields: dict[str, Any] = {
        "experience": UUID(int=rollout + 100),
        "group": group,
        "rollout": rollout,
        "stage": 0,
        "lease": UUID(int=3),
        "tokens": Array.of([1, 2], "u4"),
        "prompt_tokens": 1,
        "loss_mask": Array.of([1], "u1"),
        "logprobs": Array.of([-1.0], "f4"),
        "spans": (Span(0, 0, 0, 1),),
        "reward": 1.0,
    }
    return ExperienceProduced(**fields | changes)


@pytest.mark.parametrize("early", [True, False], ids=["before-the-lease", "after-it"])
def test_a_stranger_adds_no_rollouts_to_a_group_and_moves_it_to_no_other_stage(early: bool) -> None:
    """Anybody may append an experience: of a rollout that nobody asked for it has no effect."""
    desk = Desk()
    group, beyond = UUID(int=50), range(REPEAT, REPEAT + 6)

    def intrude() -> None:
        for rollout in beyond:
            desk.put(produced(group, rollout, stage=9), key=group)
        failure = RolloutFailed(group=group, rollout=99, stage=9, lease=UUID(int=3), code="X", reason="no")
        desk.put(failure, key=group)

    if early:
        intrude()
    desk.put(lease_of(group, lease=UUID(int=3)))
    if not early:
        intrude()
    state = desk.state.groups
    assert (state.open[group].stage, state.open[group].missing) == (0, tuple(range(REPEAT)))
    assert not list(close_groups(desk.state))
    assert state.inflight_rollouts == REPEAT
    for rollout in range(REPEAT):
        desk.put(produced(group, rollout), key=group)
    ((event, _),) = close_groups(desk.state)
    assert isinstance(event, GroupClosed)
    assert len(event.members) == REPEAT
    assert event.failed == 0


def test_a_stranger_scores_nothing_that_nobody_evaluates() -> None:
    desk = Desk(stage_of(evals=(TasksetSpec(name="held", path="none", rows=2),)))
    for taskset, stage in ((7, 0), (0, 9), (-1, -1)):
        id = UUID(int=taskset + 60)
        desk.put(scores_of([1, 1, 1], eval=id, lease=id, stage=stage, taskset=taskset), key=id)
    decided = list(Dispatcher(desk.state, Liveness()).decide(ManualClock().monotonic_s()).decisions)
    assert [each for each in decided if type(each.event).__name__ == "EvalCompleted"] == []


@pytest.mark.parametrize("rewards", [[math.nan], [math.inf], [1e38, 1e38], [[1.0, 1.0]]])
def test_scores_have_a_mean(rewards: list[Any]) -> None:
    with pytest.raises(ValueError, match="rewards"):
        scores_of(rewards)


def test_what_no_stage_is_begins_none() -> None:
    desk = Desk()
    before = desk.state.spine.stage, desk.state.spine.forked
    desk.put(StageStarted(stage=5, name="x", first_version=0))
    shared = ExperimentForked(
        parent=UUID(int=9), at_step=3, checksum="c", stage=4, first_versions=(0,), decided_at_ns=0
    )
    desk.put(shared)
    assert (desk.state.spine.stage, desk.state.spine.forked) == before
