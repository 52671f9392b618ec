"""Roles of agents on the way from a rollout to a batch: advantages by role, figures, and baselines in checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np
import pytest
from synthetic.models.algorithm_batches import make_algorithm, make_samples

from rftd.ops.errors import ConfigError
from rftd.ops.ids import derive
from rftd.streams.events.experience import ExperienceProduced, RunStep, Span
from rftd.streams.events.task import GroupClosed, Member
from rftd.streams.log.arrays import Array
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, StageSpec
from rftd.workers.engines.ranks.messages import SampleBytes
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.algorithms.advantages import ADVANTAGES
from rftd.workers.learning.algorithms.advantages.rae import RaeAdvantage
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.learning.stage.stage_training import relative_batch
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.training.group_samples import BatchExperience, group_samples

GROUP = UUID(int=7)


def rollout_of(number: int, steps: Sequence[tuple[str, float]]) -> ExperienceProduced:
    """A rollout with a sequence of two tokens for each role and reward."""
    return ExperienceProduced(
        experience=derive(GROUP, number),
        group=GROUP,
        rollout=number,
        stage=0,
        lease=GROUP,
        tokens=Array.of([5, 6] * len(steps), "u4"),
        prompt_tokens=len(steps),
        loss_mask=Array.of([1] * len(steps), "u1"),
        logprobs=Array.of([-0.5] * len(steps), "f4"),
        spans=(Span(0, 0, 0, len(steps)),),
        reward=steps[-1][1],
        steps=tuple(RunStep(2, 1, reward, None, "", role) for role, reward in steps),
    )


def batch_of(rollouts: Sequence[ExperienceProduced], **algorithm: object) -> tuple[list[TrainSample], dict[str, float]]:
    """The samples and figures of one group of these rollouts."""
    members = tuple(
        Member(event.experience, event.rollout, 0, 0, event.reward, 0.0, len(event.tokens), 0, 0) for event in rollouts
    )
    closed = GroupClosed(group=GROUP, sequence=0, stage=0, members=members, failed=0)
    stage = StageSpec(
        name="rft",
        kind="both",
        total_steps=1,
        batch_size=1,
        train_batch_size=len(rollouts),
        algorithm=AlgorithmSpec(kind="grpo", policy_loss="ppo", **algorithm),
        model=ModelSpec(path="none", max_model_len=8, max_prompt_tokens=4, max_response_tokens=4),
    )
    samples, figures = group_samples(
        ADVANTAGES.open(stage.algorithm.advantage, stage.algorithm.advantage_args),
        [closed],
        {event.experience: event for event in rollouts},
        [BatchExperience(event, 0) for event in rollouts],
        stage=stage,
        seed=1,
    )
    return [sample for of_rollout in samples for sample in of_rollout], figures


def advantages_in(samples: Sequence[TrainSample]) -> list[float]:
    """The advantage of each sequence."""
    return [float(sample.advantages[0]) for sample in samples if sample.advantages is not None]


ROLLOUTS = [
    rollout_of(0, [("solver", 1.0), ("solver", 1.0), ("solver", 0.0), ("proposer", 0.8)]),
    rollout_of(1, [("solver", 0.0), ("solver", 0.0), ("proposer", 0.2)]),
    rollout_of(2, [("proposer", 0.2)]),  # an unreadable proposal: its solvers never speak
]


def test_solvers_are_compared_in_their_rollout_and_proposers_in_their_group() -> None:
    samples, figures = batch_of(ROLLOUTS, advantage="hierarchical_grpo", advantage_args={"rollout_roles": ["solver"]})
    assert [sample.role for sample in samples[:4]] == ["solver", "solver", "solver", "proposer"]
    assert advantages_in(samples) == pytest.approx([1 / 3, 1 / 3, -2 / 3, 0.4, 0.0, 0.0, -0.2, -0.2])
    assert figures["roles/solver/sequences"] == 5
    assert figures["roles/solver/reward"] == pytest.approx(0.4)
    assert figures["roles/proposer/sequences"] == 3
    assert figures["roles/proposer/reward"] == pytest.approx(0.4)


def test_without_rollout_roles_each_role_is_a_group() -> None:
    samples, _ = batch_of(ROLLOUTS, advantage="hierarchical_grpo", advantage_args={})
    assert advantages_in(samples) == pytest.approx([0.6, 0.6, -0.4, 0.4, -0.4, -0.4, -0.2, -0.2])
    scaled, _ = batch_of(ROLLOUTS, advantage="hierarchical_grpo", advantage_args={"std_cal_level": "group"})
    std = float(np.std([1, 1, 0, 0, 0], ddof=1))
    assert advantages_in(scaled)[0] == pytest.approx(0.6 / (std + 1e-6))


def test_a_batch_of_single_agents_has_no_figure_of_roles() -> None:
    _, figures = batch_of([rollout_of(0, [("", 1.0)]), rollout_of(1, [("", 0.0)])], advantage="grpo")
    assert not [name for name in figures if name.startswith("roles/")]


@pytest.mark.parametrize("arguments", [{"rollout_roles": "solver"}, {"rollout_roles": ["a", "a"]}, {"epsilon": 0}])
def test_arguments_of_hierarchical_grpo_are_checked(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ADVANTAGES.open("hierarchical_grpo", arguments)


def test_rae_subtracts_the_moving_average_of_the_role() -> None:
    function = RaeAdvantage(decay=0.5)
    first, remembered = function.relative(["first", "second", "first"], [1.0, -1.0, 0.0], {})
    assert first == [1.0, -1.0, 0.0], "baselines begin at 0"
    assert remembered == pytest.approx({"first": 0.75 * 0.5, "second": -0.5})
    second, remembered = function.relative(["second"], [-1.0], remembered)
    assert second == pytest.approx([-0.5])
    assert remembered == pytest.approx({"first": 0.375, "second": -0.75}), "a silent role keeps its baseline"
    with pytest.raises(ConfigError):
        ADVANTAGES.open("rae", {"decay": 1.0})


def test_rows_and_cut_prompts_move_no_baseline() -> None:
    samples, _ = batch_of(ROLLOUTS[:1], advantage="rae")
    cut = msgspec.structs.replace(samples[0], loss_mask=np.zeros(1, np.uint8), reward=50.0)
    expert = msgspec.structs.replace(samples[1], expert=True, reward=70.0)
    batch = TrainBatch(step=1, stage_step=1, samples=[cut, expert, *samples[2:]])
    changed, remembered = relative_batch(RaeAdvantage(decay=0.0), batch, {"proposer": 0.5})
    assert remembered == pytest.approx({"solver": 0.0, "proposer": 0.8})
    assert changed.samples[0] is cut
    assert changed.samples[1] is expert
    assert advantages_in(changed.samples[2:]) == pytest.approx([0.0, 0.3])


def test_a_rank_is_sent_the_role_of_a_sequence() -> None:
    (sample, *_), _ = batch_of(ROLLOUTS[:1], advantage="rae")
    assert SampleBytes.of(sample).sample().role == "solver"


def test_baselines_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", seed=3, hidden_size=32, heads=2)
    samples = [
        msgspec.structs.replace(sample, role="proposer" if number % 3 else "solver")
        for number, sample in enumerate(make_samples("rae"))
    ]
    stage = StageSpec(
        name="stage",
        kind="both",
        total_steps=4,
        batch_size=4,
        train_batch_size=len(samples),
        algorithm=make_algorithm("rae"),
        model=ModelSpec(path=str(model), max_model_len=64, max_prompt_tokens=32, max_response_tokens=32),
    )
    spec = ExperimentSpec(project="p", name="n", job_dir="/nowhere", stages=(stage,), config={})
    batches = [TrainBatch(step=step, stage_step=step, samples=samples) for step in (1, 2)]

    engine = TorchTrainerEngine()
    engine.open(spec, str(model))
    engine.begin_stage(stage)
    first = engine.train(batches[0])
    engine.save(tmp_path / "global_step_1", hf=False)
    second = engine.train(batches[1])
    assert 0 < first.metrics["roles/solver/baseline"] < second.metrics["roles/solver/baseline"]
    wanted = engine.checksum()
    engine.close()

    resumed = TorchTrainerEngine()
    resumed.open(spec, str(model))
    resumed.load(tmp_path / "global_step_1", stage)
    again = resumed.train(batches[1])
    assert again.metrics["roles/solver/baseline"] == second.metrics["roles/solver/baseline"]
    assert resumed.checksum() == wanted
    resumed.close()
