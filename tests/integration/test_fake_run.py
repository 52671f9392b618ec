"""The main flow on the embedded log with fake engines: submit, explore, plan, train, publish, checkpoint, evaluate."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs
from synthetic.daemon.third_party import install

from rftd.ops import limits
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.envelope import Record
from rftd.streams.log.log import EventLog
from rftd.streams.spec.engines import AuxiliarySpec
from rftd.streams.spec.spec import AlgorithmSpec, PolicySpec, RolloutSpec, TrainerSpec
from rftd.streams.sqlite.log import SqliteLog
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.generation.model import Model
from rftd.workers.workflows.registry import WORKFLOWS
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.scorer import Scorer
from rftd.workers.workflows.simple import finish

HALF_RIGHT = RolloutSpec(engine="fake", concurrency=8, max_timeout_s=20.0, engine_args={"skill": 0.5, "gain": 0.0})


@pytest.mark.anyio
async def test_two_stages_run_to_their_end(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> None:
    spec = fake_world.spec(tmp_path)
    state = await fake_world.completed(log, spec, clock, ids)
    spine = state.spine
    assert spine.status is Status.COMPLETED, (spine.code, spine.reason)
    assert spine.version == 8
    assert len(spine.evaluated) == 2
    books = state.replay_buffer.counts()
    assert books["balance"] == 0
    assert books["waiting"] == 0
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
    assert sum(state.replay_buffer.books.retired.values()) == 0
    assert (await fake_world.verified(log)).clean


@pytest.mark.anyio
async def test_a_run_of_40_steps_can_be_read_from_its_logs_alone(tmp_path: Path, clock, ids, fake_world) -> None:
    trainer = TrainerSpec(engine="fake", save_interval=10)
    spec = fake_world.spec(tmp_path, total_steps=37, trainer=trainer, rollout=HALF_RIGHT)
    log = await SqliteLog.open(tmp_path / "log")
    with capture_logs() as lines:
        state = await fake_world.completed(log, spec, clock, ids)
    await log.close()
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    assert len(lines) <= 2 * 40, [line["event"] for line in lines]
    assert [line for line in lines if line["log_level"] != "info"] == []
    steps = [line for line in lines if line["event"] == "step.completed"]
    assert [line["step"] for line in steps] == list(range(1, 41))
    assert [line["stage"] for line in steps] == ["warmup"] * 3 + ["rft"] * 37
    assert all(line["tokens"] > 0 and line["tokens_per_s"] > 0 and line["duration_s"] >= 0 for line in steps)
    assert all("interval_s" in line for line in steps[1:])
    rewards = [line["reward"] for line in steps[3:]]
    assert 0.2 < sum(rewards) / len(rewards) < 0.8, rewards
    # Weights are loaded by explorers later than they are made: the line names what they could have by then.
    assert all(0 <= line["published"] <= line["step"] and "publish_s" in line for line in steps)
    published = [line["version"] for line in lines if line["event"] == "weights.published"]
    assert (published[0], published[-1]) == (0, 40)
    saved = {(line["step"], line["path"]) for line in lines if line["event"] == "checkpoint.committed"}
    assert saved == {(step, event.path) for (step, _), event in state.checkpoints.items()}
    scored = [(line["version"], line["rows"]) for line in lines if line["event"] == "eval.scored"]
    whole = [(line["version"], line["rows"]) for line in lines if line["event"] == "eval.completed"]
    assert sorted(scored) == sorted(whole)
    assert len(whole) == len(state.spine.evaluated) > 0
    others = [line["event"] for line in lines]
    assert others.count("generation.started") == others.count("explorer.ready") == 1
    assert others.index("experiment.started") < others.index("stage.started") < others.index("experiment.completed")


async def fake_records(log: EventLog) -> list[Record]:
    """Everything in the stream of experiences."""
    heads = await log.heads()
    found: list[Record] = []
    for partition, head in heads.items():
        if partition.stream == topics.EXPERIENCES:
            found += await log.read(partition, 0, max_records=head.next_offset)
    return found


class TwoSteps:
    """Asks once, and again about the answer; the second answer is scored."""

    default_reward = "exact_match_reward"

    async def run(self, task: Task, model: Model, reward: Scorer) -> list[RolloutResult]:
        steps = []
        for number, prompt in enumerate(("1+1=", "2+2=")):
            result = await finish(task, await model.complete(prompt), reward)
            steps.append(msgspec.structs.replace(result, state=f"{task.row}.{number}"))
        return steps


@pytest.mark.anyio
async def test_a_rollout_of_several_steps_is_one_experience(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WORKFLOWS._table, "two_steps", f"{__name__}:TwoSteps")
    algorithm = AlgorithmSpec(kind="grpo", repeat_times=4, advantage="gigpo", policy_loss="ppo")
    spec = fake_world.spec(tmp_path, algorithm=algorithm)
    stage = spec.stages[1]
    assert stage.taskset is not None
    taskset = msgspec.structs.replace(stage.taskset, workflow="two_steps")
    spec = msgspec.structs.replace(spec, stages=(spec.stages[0], msgspec.structs.replace(stage, taskset=taskset)))
    state = await fake_world.completed(log, spec, clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    assert state.replay_buffer.counts()["planned"] == 5 * 16
    assert state.replay_buffer.counts()["balance"] == 0
    assert (await fake_world.verified(log)).clean
    events = [decode(record).event for record in await fake_records(log)]
    produced = [event for event in events if isinstance(event, ExperienceProduced)]
    assert produced
    assert all(len(event.steps) == 2 for event in produced)


class AsksBeside:
    """Asks an auxiliary model what it thinks of the answer."""

    default_reward = "exact_match_reward"

    async def run(self, task: Task, model: Model, reward: Scorer) -> RolloutResult:
        response = await model.complete(task.prompt)
        await model.auxiliary_models[0].chat([Message("user", response.text)])
        return await finish(task, response, reward)


@pytest.mark.anyio
async def test_what_an_auxiliary_model_answers_is_part_of_the_experience(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WORKFLOWS._table, "asks_beside", f"{__name__}:AsksBeside")
    spec = fake_world.spec(tmp_path)
    stage = spec.stages[1]
    assert stage.taskset is not None
    beside = AuxiliarySpec(
        name="beside", engine="fake", max_model_len=128, max_prompt_tokens=96, max_response_tokens=32
    )
    taskset = msgspec.structs.replace(stage.taskset, workflow="asks_beside")
    stage = msgspec.structs.replace(stage, taskset=taskset, auxiliary=(beside,))
    state = await fake_world.completed(log, msgspec.structs.replace(spec, stages=(spec.stages[0], stage)), clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    assert (await fake_world.verified(log)).clean
    events = [decode(record).event for record in await fake_records(log)]
    turns = [event.auxiliary for event in events if isinstance(event, ExperienceProduced)]
    assert turns
    assert {(len(each), each[0].model, each[0].chars) for each in turns} == {(1, "beside", 1)}


JUDGING = """
from rftd.workers.api import Message, RewardResult
class Judging:
    async def score(self, response, truth, task, *, auxiliary_models):
        answer = await auxiliary_models[0].chat([Message("user", response)])
        return RewardResult(value=float(answer.text.strip() in {"0", "2", "4", "6", "8"}))
"""


@pytest.mark.anyio
async def test_a_reward_of_somebodys_own_asks_the_reward_model_that_stands_beside(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the guide has it: `default_reward_fn_type` names the reward, `auxiliary_models` has the model that it asks."""
    install(tmp_path, "judging_reward", JUDGING, {"rftd.rewards": {"custom_reward": "judging_reward:Judging"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = fake_world.spec(tmp_path)
    stage = spec.stages[1]
    assert stage.taskset is not None
    judge = AuxiliarySpec(name="judge", engine="fake", max_model_len=128, max_prompt_tokens=96, max_response_tokens=32)
    taskset = msgspec.structs.replace(stage.taskset, reward="custom_reward")
    stage = msgspec.structs.replace(stage, taskset=taskset, auxiliary=(judge,))
    state = await fake_world.completed(log, msgspec.structs.replace(spec, stages=(spec.stages[0], stage)), clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    events = [decode(record).event for record in await fake_records(log)]
    scored = [(event.reward, event.auxiliary) for event in events if isinstance(event, ExperienceProduced)]
    assert {reward for reward, _ in scored} == {0.0, 1.0}
    for reward, answers in scored:
        (answer,) = answers
        assert answer.model == "judge"
        assert reward == float(answer.text.strip() in {"0", "2", "4", "6", "8"})
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
    # Answers are right by chance, of 0.1 at first: that each of twenty groups has both has one in 100,000.
    rollout = RolloutSpec(engine="fake", concurrency=8, max_timeout_s=20.0, engine_args={"skill": -0.05})
    spec = fake_world.spec(tmp_path, algorithm=algorithm, rollout=rollout, **timeline)
    state = await fake_world.completed(log, spec, clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    books = state.replay_buffer.counts()
    assert books["planned"] == 5 * 16
    assert books["balance"] == 0
    assert (
        state.replay_buffer.books.retired["uninformative"] % 4 == 0 < state.replay_buffer.books.retired["uninformative"]
    )
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
