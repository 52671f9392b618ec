"""What assembling a batch reads: what is far apart apart, and what is used again only once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pytest
from synthetic.log.recorder import Recorder

from rftd.ops.errors import RowError
from rftd.ops.ids import derive
from rftd.streams.events.batch import BatchPlanned, ExperienceItem, GroupRef, RowItem
from rftd.streams.events.experience import ExperienceProduced, RunStep, SamplingSpan, Span
from rftd.streams.events.task import GroupClosed, Member
from rftd.streams.log import topics
from rftd.streams.log.arrays import Array
from rftd.streams.log.codec import decode_as
from rftd.streams.log.envelope import Position, Record
from rftd.streams.log.topics import Partition
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, PolicySpec, StageSpec, TasksetSpec
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.learning.engine import TrainBatch
from rftd.workers.training.assembly import READ_ALONG_RECORDS, Assembly, Reuse, stretches
from rftd.workers.training.group_samples import Constants, temperatures_of, versions_of

MEMBERS = 4
EXPERIMENT = derive(UUID(int=1), "experiment")
HERE, THERE = Partition(topics.EXPERIENCES, 0), Partition(topics.EXPERIENCES, 1)


class CountingLog(MemoryLog):
    """Says what was read from it."""

    def __init__(self) -> None:
        super().__init__()
        self.read_records = 0

    async def read(self, partition: Partition, start: int, **most: int) -> list[Record]:
        found = await super().read(partition, start, **most)
        self.read_records += len(found)
        return found


def _steps(rollout: int, reward: float) -> tuple[RunStep, ...]:
    """Two steps of one trained token each: [7], then 8 and the number. The first brings the number."""
    state = f"begun{rollout % 2}"
    return (RunStep(1, 0, 9.0, float(rollout), state), RunStep(2, 1, reward, None, "alone" if rollout == 0 else ""))


class Closed:
    """A closed group on the recorder."""

    def __init__(
        self,
        recorder: Recorder,
        number: int,
        *,
        rewards: Sequence[float] = range(MEMBERS),
        steps: bool = False,
        trained: Sequence[int] = (2,) * MEMBERS,
        finishes: Sequence[str] = ("stop",) * MEMBERS,
        parts: Sequence[dict[str, float]] = ({},) * MEMBERS,
    ) -> None:
        self._steps = steps
        self._trained = trained
        self._finishes = finishes
        self._parts = parts
        self.id = derive(EXPERIMENT, "group", number)
        members = [self._produced(recorder, rollout, reward) for rollout, reward in enumerate(rewards)]
        self.members = [
            Member(id, i, at.partition.number, at.offset, rewards[i], 0.0, 3, 0, 0)
            for i, (id, at) in enumerate(members)
        ]
        event = GroupClosed(group=self.id, sequence=number, stage=0, members=tuple(self.members), failed=0)
        self.place = recorder.write(event, EXPERIMENT)

    def _produced(self, recorder: Recorder, rollout: int, reward: float) -> tuple[UUID, Position]:
        id = derive(self.id, "experience", rollout)
        event = ExperienceProduced(
            experience=id,
            group=self.id,
            rollout=rollout,
            stage=0,
            lease=self.id,
            tokens=Array.of([7, 8, rollout], "u4"),
            prompt_tokens=1,
            loss_mask=Array.of([int(self._trained[rollout] > place) for place in range(2)], "u1"),
            logprobs=Array.of([-0.5 - rollout, -0.25], "f4"),
            spans=(Span(0, 0, 0, 2),),
            reward=reward,
            finish=self._finishes[rollout],
            metrics=self._parts[rollout],
            steps=_steps(rollout, reward) if self._steps else (),
        )
        return id, recorder.write(event, EXPERIMENT, partition=HERE)

    def items(self, group: int, use: int) -> Iterator[ExperienceItem]:
        """Its experiences in a plan in which it is the group of that number."""
        for index, member in enumerate(self.members):
            yield ExperienceItem(member.experience, member.partition, member.offset, group, index, 0, use)


def planned(step: int, groups: Sequence[Closed], use: int, max_uses: int) -> BatchPlanned:
    """All of these groups as one batch."""
    return BatchPlanned(
        batch=derive(EXPERIMENT, "batch", step),
        step=step,
        stage=0,
        experiences=tuple(item for number, group in enumerate(groups) for item in group.items(number, use)),
        groups=tuple(GroupRef(group.id, group.place.partition.number, group.place.offset) for group in groups),
        observed=(),
        decided_at_ns=step,
        max_uses=max_uses,
    )


def assembly_on(log: MemoryLog, max_uses: int = 1, **algorithm: Any) -> Assembly:
    """The assembly of an experiment of one stage that uses experiences so often."""
    objective = AlgorithmSpec(kind="grpo", repeat_times=MEMBERS, advantage="grpo", policy_loss="ppo")
    stage = StageSpec(
        name="rft",
        kind="both",
        folder="/nowhere",
        total_steps=9,
        batch_size=2,
        train_batch_size=2 * MEMBERS,
        algorithm=msgspec.structs.replace(objective, **algorithm),
        model=ModelSpec(path="none", max_model_len=8, max_prompt_tokens=4, max_response_tokens=4),
        policy=PolicySpec(max_uses=max_uses),
    )
    return Assembly(log, ExperimentSpec(project="p", name="n", job_dir="/nowhere", stages=(stage,), config={}))


@pytest.mark.anyio
@pytest.mark.parametrize("max_uses", [2, 0])
async def test_what_is_used_again_is_read_once(max_uses: int) -> None:
    recorder, log = Recorder(), CountingLog()
    groups = [Closed(recorder, number) for number in range(2)]
    await log.append(recorder.drafts)
    assembly = assembly_on(log, max_uses)
    first = await assembly.batch(planned(1, groups, 1, max_uses), 0)
    assert log.read_records == 2 * MEMBERS + 2
    again = await assembly.batch(planned(2, groups, 2, max_uses), 0)
    assert log.read_records == 2 * MEMBERS + 2
    for one, other in zip(first.samples, again.samples, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.advantages, other.advantages)


@pytest.mark.parametrize(
    ("spans", "versions"),
    [
        ((Span(3, 0, 0, 2), Span(4, 0, 2, 5), Span(6, 1, 5, 6)), [3, 3, 4, 4, 4, 6]),
        ((Span(3, 0, 0, 2), Span(5, 0, 4, 6)), [3, 3, 3, 3, 5, 5]),
        ((Span(0, 0, 0, 6),), [0] * 6),
    ],
)
def test_each_token_has_the_version_that_drew_it(spans: tuple[Span, ...], versions: list[int]) -> None:
    constants = Constants()
    found = versions_of(spans, 6, constants)
    assert found is not None
    assert found.tolist() == versions
    assert versions_of((), 6, constants) is None
    whole = versions_of(spans[:1], 6, constants)
    assert whole is not None, "what was made before is not changed"
    assert whole.tolist() == [spans[0].version] * 6, "what was made before is not changed"


@pytest.mark.parametrize(
    ("sampling", "temperatures"),
    [
        ((SamplingSpan(0, 4, 0.6),), [0.6] * 4),
        ((SamplingSpan(0, 2, 0.6), SamplingSpan(2, 4, 1.4)), [0.6, 0.6, 1.4, 1.4]),
        ((SamplingSpan(1, 2, 0.0),), [0.8, 0.0, 0.8, 0.8]),
        ((), [0.8] * 4),
    ],
    ids=["all", "each", "some", "none"],
)
def test_each_token_has_the_temperature_that_drew_it(
    sampling: tuple[SamplingSpan, ...], temperatures: list[float]
) -> None:
    constants = Constants()
    for _ in range(2):
        assert temperatures_of(sampling, 4, 0.8, constants).tolist() == temperatures
    assert temperatures_of((), 4, 0.8, constants).tolist() == [0.8] * 4, "what was made before is not changed"


@pytest.mark.anyio
async def test_what_is_used_once_is_not_kept() -> None:
    recorder, log = Recorder(), CountingLog()
    groups = [Closed(recorder, 0)]
    await log.append(recorder.drafts)
    assembly = assembly_on(log, 1)
    for step in (1, 2):
        await assembly.batch(planned(step, groups, 1, 1), 0)
        assert log.read_records == step * (MEMBERS + 1)


@pytest.mark.anyio
async def test_what_lies_between_is_not_read() -> None:
    recorder, log = Recorder(), CountingLog()
    groups = [Closed(recorder, number) for number in range(20)]
    await log.append(recorder.drafts)
    batch = await assembly_on(log, 1).batch(planned(1, [groups[0], groups[-1]], 1, 1), 0)
    assert [int(sample.tokens[-1]) for sample in batch.samples] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert log.read_records <= 2 * MEMBERS + READ_ALONG_RECORDS + 2 < 20 * MEMBERS


def advantages_in(batch: TrainBatch) -> list[float]:
    return [float(sample.advantages[0]) for sample in batch.samples if sample.advantages is not None]


@pytest.mark.anyio
async def test_ranks_are_those_of_the_whole_group_even_if_a_part_of_it_is_trained() -> None:
    recorder, log = Recorder(), CountingLog()
    group = Closed(recorder, 0, rewards=[1.0] * MEMBERS)
    await log.append(recorder.drafts)
    plan = planned(1, [group], 1, 1)
    assembly = assembly_on(log, advantage_args={"rank_penalty": 0.4})
    whole = advantages_in(await assembly.batch(plan, 0))
    assert whole == sorted(whole), "the least likely answer, the last, is worth most"
    assert whole[0] < 0 < whole[-1]
    part = msgspec.structs.replace(plan, experiences=plan.experiences[2:3])
    assert advantages_in(await assembly.batch(part, 0)) == whole[2:3]


@pytest.mark.anyio
async def test_a_baseline_by_length_counts_the_trained_tokens_of_the_whole_group() -> None:
    recorder = Recorder()
    log = CountingLog()
    group = Closed(recorder, 0, rewards=[1.0, 0.0, 0.0, 1.0], trained=[2, 1, 1, 0])
    await log.append(recorder.drafts)
    plan = planned(1, [group], 1, 1)
    batch = await assembly_on(log, advantage="opo").batch(plan, 0)
    assert advantages_in(batch) == [0.5, -0.5, -0.5, 0.5]


@pytest.mark.anyio
async def test_the_parts_of_rewards_are_normalised_each_by_itself() -> None:
    recorder = Recorder()
    log = CountingLog()
    parts = [{"right": 1.0, "form": 0.0}, {"right": 0.0, "form": 0.01}, {"right": 0.0}, {"right": 1.0, "form": 0.01}]
    group = Closed(recorder, 0, rewards=[sum(each.values()) for each in parts], parts=parts)
    await log.append(recorder.drafts)
    plan = planned(1, [group], 1, 1)
    function: dict[str, Any] = {"advantage": "gdpo", "advantage_args": {"weights": {"form": 1.0}}}
    found = advantages_in(await assembly_on(log, **function).batch(plan, 0))
    assert found[0] < found[2] < found[1] == found[3], "as the form alone has it; who has none is in the middle"


@pytest.mark.anyio
@pytest.mark.parametrize("steps", [False, True])
async def test_a_response_that_was_cut_off_is_not_trained_and_counts_in_its_group(steps: bool) -> None:
    recorder = Recorder()
    log = CountingLog()
    finishes = ["stop", "length", "stop", "length"]
    group = Closed(recorder, 0, rewards=[1.0, 0.0, 0.0, 1.0], finishes=finishes, steps=steps)
    await log.append(recorder.drafts)
    plan = planned(1, [group], 1, 1)
    usual = await assembly_on(log).batch(plan, 0)
    masked = await assembly_on(log, advantage_args={"mask_truncated": True}).batch(plan, 0)
    assert advantages_in(masked) == advantages_in(usual)
    each = len(usual.samples) // MEMBERS
    for number, (sample, before) in enumerate(zip(masked.samples, usual.samples, strict=True)):
        cut = finishes[number // each] == "length"
        assert before.loss_mask.any()
        assert sample.loss_mask.tolist() == (before.loss_mask * (not cut)).tolist()


@pytest.mark.anyio
async def test_a_greedy_baseline_is_not_trained() -> None:
    recorder, log = Recorder(), CountingLog()
    plan = planned(1, [Closed(recorder, 0, rewards=[0.5, 0.0, 1.0, 0.5])], 1, 1)
    await log.append(recorder.drafts)
    batch = await assembly_on(log, advantage="remax", greedy_rollouts=1).batch(plan, 0)
    assert advantages_in(batch) == [0.0, -0.5, 0.5, 0.0]
    assert [int(sample.loss_mask.sum()) for sample in batch.samples] == [0, 2, 2, 2]


@pytest.mark.anyio
async def test_a_group_that_teaches_nothing_is_replaced_by_another_of_the_batch() -> None:
    recorder, log = Recorder(), CountingLog()
    groups = [Closed(recorder, 0), Closed(recorder, 1, rewards=[1.0] * MEMBERS), Closed(recorder, 2)]
    await log.append(recorder.drafts)
    plan = planned(1, groups, 1, 1)
    assembly = assembly_on(log, advantage_args={"std_threshold": 0.0, "duplicate_experiences": True})
    batch = await assembly.batch(plan, 0)
    again = await assembly.batch(plan, 0)
    trained = [sample.group for sample in batch.samples]
    assert trained in ([0] * 8 + [2] * 4, [0] * 4 + [2] * 8)
    assert trained == [sample.group for sample in again.samples]
    assert [int(sample.tokens[-1]) for sample in batch.samples] == [0, 1, 2, 3] * 3
    assert batch.metrics["group_advantages/reward_std/min"] == 0.0


@pytest.mark.anyio
async def test_each_step_is_a_sequence_with_the_advantage_of_its_rollout() -> None:
    recorder, log = Recorder(), CountingLog()
    plan = planned(1, [Closed(recorder, 0, steps=True)], 1, 1)
    await log.append(recorder.drafts)
    batch = await assembly_on(log).batch(plan, 0)
    assert [sample.tokens.tolist() for sample in batch.samples[:4]] == [[7], [8, 0], [7], [8, 1]]
    assert [sample.prompt_tokens for sample in batch.samples[:2]] == [0, 1]
    assert list(batch.items) == [2] * MEMBERS, "the steps of a rollout are one item"
    assert [sample.reward for sample in batch.samples[:2]] == [9.0, 0.0]
    assert all(len(sample.loss_mask) == 1 for sample in batch.samples)
    assert [sample.logprobs.tolist() for sample in batch.samples[2:4] if sample.logprobs is not None] == [
        [-1.5],
        [-0.25],
    ]
    found = advantages_in(batch)
    assert found[::2] == found[1::2] == sorted(found[::2])
    again = advantages_in(await assembly_on(log, advantage="step_wise_grpo").batch(plan, 0))
    assert again == found, "the last step's reward is the rollout's"


@pytest.mark.anyio
async def test_functions_of_steps_see_each_of_them() -> None:
    recorder, log = Recorder(), CountingLog()
    plan = planned(1, [Closed(recorder, 0, steps=True)], 1, 1)
    await log.append(recorder.drafts)
    plain = advantages_in(await assembly_on(log, advantage="step_wise_grpo").batch(plan, 0))
    halved = assembly_on(log, advantage="step_wise_grpo", advantage_args={"enable_step_norm": True})
    assert advantages_in(await halved.batch(plan, 0)) == pytest.approx([each / 2 for each in plain])
    gigpo = advantages_in(await assembly_on(log, advantage="gigpo", advantage_args={"omega": 2.0}).batch(plan, 0))
    assert gigpo == pytest.approx([-3.5, -1.5, -2.5, -0.5, 2.5, 0.5, 3.5, 1.5], rel=1e-5)


def test_stretches_end_where_the_next_place_is_far() -> None:
    far = 5 + READ_ALONG_RECORDS + 1
    places = [Position(THERE, 9), Position(HERE, far), Position(HERE, 5), Position(HERE, 3)]
    assert list(stretches(places)) == [(HERE, [3, 5]), (HERE, [far]), (THERE, [9])]
    assert list(stretches([])) == []


def test_what_is_kept_is_bounded_and_ends_with_its_last_use() -> None:
    recorder = Recorder()
    groups = [Closed(recorder, number) for number in range(3)]
    records = {Position(record.partition, record.offset): record for record in recorder.records}
    sizes = {place: len(record.head) + len(record.value) for place, record in records.items()}

    def of(group: Closed) -> set[Position]:
        return {group.place, *(Position(HERE, member.offset) for member in group.members)}

    most = sum(sizes[place] for group in groups[1:] for place in of(group))
    reuse = Reuse(most)
    for step, group in enumerate(groups, start=1):
        reuse.note(planned(step, [group], 1, 2), records)
    assert reuse.size_bytes <= most
    assert set(reuse.among(records)) == of(groups[1]) | of(groups[2])
    reuse.note(planned(4, [groups[1]], 2, 2), records)
    assert set(reuse.among(records)) == of(groups[2]) | {groups[1].place}


def _recorded_rows(recorder: Recorder, groups: Sequence[Closed]) -> list[dict[str, Any]]:
    """The experiences of the groups as rows of `schema_type: experience`."""
    events = [decode_as(record, ExperienceProduced) for record in recorder.records if record.partition == HERE]
    order = {group.id: number for number, group in enumerate(groups)}
    rows = []
    for event in sorted(events, key=lambda event: (order[event.group], event.rollout)):
        rows.append(
            {
                "group": str(event.group),
                "rollout": event.rollout,
                "tokens": event.tokens.view().tolist(),
                "prompt_tokens": event.prompt_tokens,
                "loss_mask": event.loss_mask.view().tolist(),
                "logprobs": event.logprobs.view().tolist(),
                "reward": event.reward,
                "finish": event.finish,
                "metrics": event.metrics,
                "steps": [msgspec.structs.asdict(step) for step in event.steps],
            }
        )
    return rows


def _offline(folder: Path, rows: Sequence[dict[str, Any]], **algorithm: Any) -> tuple[Assembly, Taskset]:
    """The assembly of a stage that trains on the rows."""
    path = folder / "recorded.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = TasksetSpec(name="recorded", path=str(path), schema="experience", rows=len(rows))
    dataset = Taskset.open(spec)
    stage = StageSpec(
        name="offline",
        kind="train",
        folder="/nowhere",
        total_steps=9,
        batch_size=2,
        train_batch_size=len(rows),
        algorithm=msgspec.structs.replace(
            AlgorithmSpec(kind="grpo", repeat_times=MEMBERS, advantage="grpo", policy_loss="ppo"), **algorithm
        ),
        model=ModelSpec(path="none", max_model_len=8, max_prompt_tokens=4, max_response_tokens=4),
        dataset=msgspec.structs.replace(spec, digest=dataset.digest),
    )
    spec_of_all = ExperimentSpec(project="p", name="n", job_dir=str(folder), stages=(stage,), config={})
    return Assembly(MemoryLog(), spec_of_all), dataset


def _plan_of(dataset: Taskset, rows: Sequence[int]) -> BatchPlanned:
    return BatchPlanned(
        batch=derive(EXPERIMENT, "batch", 1),
        step=1,
        stage=0,
        rows=tuple(RowItem(0, row, 0) for row in rows),
        datasets=(dataset.digest,),
        observed=(),
        decided_at_ns=1,
    )


@pytest.mark.anyio
@pytest.mark.parametrize(
    "algorithm",
    [{}, {"greedy_rollouts": 1}, {"advantage": "gdpo"}, {"advantage": "step_wise_grpo"}],
    ids=["grpo", "greedy", "parts", "steps"],
)
async def test_recorded_rows_are_trained_as_the_log_trains_them(tmp_path: Path, algorithm: dict[str, Any]) -> None:
    recorder, log = Recorder(), MemoryLog()
    parts = [{"right": float(rollout % 2), "short": 0.5 * rollout} for rollout in range(MEMBERS)]
    steps = algorithm.get("advantage") == "step_wise_grpo"
    groups = [
        Closed(recorder, number, rewards=[1.0, 0.0, number, 0.5], steps=steps, parts=parts) for number in range(2)
    ]
    await log.append(recorder.drafts)
    live = await assembly_on(log, **algorithm).batch(planned(1, groups, 1, 1), 0)
    rows = _recorded_rows(recorder, groups)
    assembly, dataset = _offline(tmp_path, rows, **algorithm)
    offline = await assembly.batch(_plan_of(dataset, range(len(rows))), 0)
    assert offline.items == live.items
    assert offline.metrics == live.metrics
    for sample, reference in zip(offline.samples, live.samples, strict=True):
        for name in ("tokens", "loss_mask", "logprobs", "advantages", "temperatures"):
            np.testing.assert_array_equal(getattr(sample, name), getattr(reference, name), err_msg=name)
        assert (sample.prompt_tokens, sample.reward, sample.group) == (
            reference.prompt_tokens,
            reference.reward,
            reference.group,
        )


@pytest.mark.anyio
async def test_a_group_that_two_batches_share_has_the_same_advantages(tmp_path: Path) -> None:
    recorder = Recorder()
    rows = _recorded_rows(recorder, [Closed(recorder, number) for number in range(2)])
    texts = [
        {name: json.dumps(value) if isinstance(value, list) else value for name, value in row.items()} for row in rows
    ]
    assembly, dataset = _offline(tmp_path, texts)
    whole = await assembly.batch(_plan_of(dataset, range(8)), 0)
    pieces = [await assembly.batch(_plan_of(dataset, rows), 0) for rows in ([0, 1, 2], [3, 4, 5, 6, 7])]
    shared = [sample for piece in pieces for sample in piece.samples]
    for sample, reference in zip(shared, whole.samples, strict=True):
        np.testing.assert_array_equal(sample.advantages, reference.advantages)


@pytest.mark.anyio
async def test_a_rollout_number_twice_in_a_group_fails_with_its_row(tmp_path: Path) -> None:
    recorder = Recorder()
    rows = _recorded_rows(recorder, [Closed(recorder, 0)])
    rows[3]["rollout"] = 1
    assembly, dataset = _offline(tmp_path, rows)
    with pytest.raises(RowError, match="has rollout 1, and a row before it") as error:
        await assembly.batch(_plan_of(dataset, [0]), 0)
    assert "recorded.jsonl:4" in str(error.value.where)


@pytest.mark.anyio
async def test_recorded_rows_beside_experiences_are_trained_as_their_own_groups(tmp_path: Path) -> None:
    recorder, log = Recorder(), MemoryLog()
    groups = [Closed(recorder, number, rewards=[1.0, 0.0, number, 0.5]) for number in range(2)]
    await log.append(recorder.drafts)
    live = await assembly_on(log).batch(planned(1, groups, 1, 1), 0)
    rows = _recorded_rows(recorder, groups)
    assembly, dataset = _offline(tmp_path, rows)
    recorded = await assembly.batch(_plan_of(dataset, range(len(rows))), 0)
    replaced = msgspec.structs.replace
    stage = replaced(assembly._spec.stages[0], kind="both", expert_rows=len(rows))
    spec = replaced(assembly._spec, stages=(stage,))
    row_items = _plan_of(dataset, range(len(rows))).rows
    plan = replaced(planned(1, groups, 1, 1), rows=row_items, datasets=(dataset.digest,))
    mixed = await Assembly(log, spec).batch(plan, 0)
    assert mixed.items == live.items + recorded.items
    assert [sample.group for sample in mixed.samples[: len(live.samples)]] == [s.group for s in live.samples]
    for sample, reference in zip(mixed.samples[len(live.samples) :], recorded.samples, strict=True):
        for name in ("tokens", "loss_mask", "logprobs", "advantages", "temperatures"):
            np.testing.assert_array_equal(getattr(sample, name), getattr(reference, name), err_msg=name)
        assert sample.group == reference.group + len(groups), "a group of its own"
        assert not sample.expert
        assert sample.versions is not None and set(sample.versions.tolist()) == {plan.step}, "no older than the weights"
    beside = {f"auxiliary/{name}": figure for name, figure in recorded.metrics.items()}
    assert mixed.metrics == live.metrics | beside
