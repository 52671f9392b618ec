"""Two agents of one model in a rollout, a proposer of sums and its solvers: each learns from its own reward."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
import numpy as np
import pytest
from structlog.testing import capture_logs
from synthetic.log.log_reading import read_decoded
from synthetic.until import until

from rftd.daemon.run.supervisor.preflight import preflight
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.log import EventLog
from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, RolloutSpec, SamplingSpec, TrainerSpec
from rftd.streams.sqlite.log import SqliteLog
from rftd.workers.datasets.task import Task
from rftd.workers.generation.model import Model
from rftd.workers.learning.algorithms.registry import lookup
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.workflows.registry import WORKFLOWS
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.rewards.scorer import Scorer
from rftd.workers.workflows.trajectory import Trajectory

SOLVERS = 4
DIGITS = 5
PROPOSAL = re.compile(r"(\d)\+(\d)=")
ASK = "sum:"
SEEDS = [int(seed) for seed in os.environ.get("RFTD_LEARNING_SEEDS", "1").split()]
"""`make test-learning` plays the game from three."""
BOUND_S = 3000.0 if "RFTD_LEARNING_SEEDS" in os.environ else 400.0
"""Seconds until a game is taken for stuck; by hand it may run beside anything."""


def alone(response: Any, reward: float, role: str) -> RolloutResult:
    """The sequence of an agent with a single answer."""
    trajectory = Trajectory()
    trajectory.add(response)
    return trajectory.result(RewardResult(value=reward), role=role)


class SumsGame:
    """A proposer writes a sum, and solvers answer it: the proposer is paid for a sum that they can answer."""

    default_reward = "exact_match_reward"
    roles = ("proposer", "solver")

    async def run(self, task: Task, model: Model, reward: Scorer) -> Sequence[RolloutResult]:
        proposal = await model.complete(ASK)
        terms = PROPOSAL.fullmatch(proposal.text)
        if terms is None:
            # Nobody can solve this: the solvers never speak.
            return [alone(proposal, 0.0, "proposer")]
        total = str(int(terms[1]) + int(terms[2]))
        answers = await asyncio.gather(*(model.complete(proposal.text) for _ in range(SOLVERS)))
        right = [float(answer.text == total) for answer in answers]
        solved = [alone(answer, score, "solver") for answer, score in zip(answers, right, strict=True)]
        return [*solved, alone(proposal, 0.5 + 0.5 * mean(right), "proposer")]


class StrangeGame(SumsGame):
    """Gives a role that it did not declare."""

    roles = ("solver",)


class NanGame(SumsGame):
    """Gives the proposer no number."""

    async def run(self, task: Task, model: Model, reward: Scorer) -> Sequence[RolloutResult]:
        return [alone(await model.complete(ASK), math.nan, "proposer")]


def warm_rows(path: Path, seed: int) -> Path:
    """Half of the proposals are sums, and half of the answers are right."""
    draws = np.random.default_rng(seed)
    rows = []
    for first in range(DIGITS):
        for second in range(DIGITS):
            wrong = first + second + 1 + int(draws.integers(3))
            rows += [
                {"question": ASK, "answer": f"{first}+{second}="},
                {"question": ASK, "answer": f"{first}{second}="},
                {"question": f"{first}+{second}=", "answer": str(first + second)},
                {"question": f"{first}+{second}=", "answer": str(wrong)},
            ]
    draws.shuffle(rows)  # type: ignore[arg-type]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def game_spec(
    folder: Path, fake_world: Any, kind: str, arguments: dict[str, Any], *, seed: int = 1, workflow: str = "sums_game"
) -> ExperimentSpec:
    """A warm-up on proposals and answers of which half are wrong, and a stage of the game."""
    asks = folder / "asks.jsonl"
    asks.write_text("".join(json.dumps({"question": ASK, "answer": str(number)}) + "\n" for number in range(64)))
    engines = {
        "rollout": RolloutSpec(engine="torch", concurrency=160, max_timeout_s=60.0),
        "trainer": TrainerSpec(engine="torch", save_interval=1000),
        "model": ModelSpec(
            path=str(make_tiny_model(folder / "model", seed=seed)),
            max_model_len=24,
            max_prompt_tokens=12,
            max_response_tokens=6,
        ),
    }
    definition = lookup(kind)
    spec: ExperimentSpec = fake_world.spec(folder)
    warm, game = (msgspec.structs.replace(stage, **engines) for stage in spec.stages)
    assert warm.dataset is not None
    assert game.taskset is not None
    warm = msgspec.structs.replace(
        warm,
        total_steps=120,
        batch_size=64,
        train_batch_size=64,
        dataset=msgspec.structs.replace(
            warm.dataset, path=str(warm_rows(folder / "warm.jsonl", seed)), rows=0, digest=""
        ),
        algorithm=AlgorithmSpec(kind="sft", policy_loss="sft", optimizer=Optimizer(lr=3e-3)),
    )
    game = msgspec.structs.replace(
        game,
        total_steps=40,
        batch_size=8,
        train_batch_size=32,
        evals=(),
        algorithm=AlgorithmSpec(
            kind=kind,
            repeat_times=4,
            advantage=definition.advantage,
            advantage_args=arguments,
            policy_loss=definition.policy_loss,
            policy_loss_args=definition.policy_loss_args,
            optimizer=Optimizer(lr=1e-3),
        ),
        taskset=msgspec.structs.replace(
            game.taskset, path=str(asks), rows=0, digest="", workflow=workflow, sampling=SamplingSpec(max_tokens=6)
        ),
    )
    return preflight(msgspec.structs.replace(spec, seed=seed, stages=(warm, game)))


async def events_of(log: EventLog, stream: str) -> list[Any]:
    """All events of a stream."""
    return [record.event for record in await read_decoded(log, stream)]


@pytest.mark.slow
@pytest.mark.timeout(BOUND_S + 200)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kind", "arguments"), [("hierarchical_grpo", {"rollout_roles": ["solver"]}), ("rae", {})])
@pytest.mark.anyio
async def test_both_rewards_of_the_game_rise(
    tmp_path: Path, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch, kind: str, arguments: Any, seed: int
) -> None:
    monkeypatch.setitem(WORKFLOWS._table, "sums_game", f"{__name__}:SumsGame")
    log = await SqliteLog.open(tmp_path / "log")
    run = await fake_world.run(log, game_spec(tmp_path, fake_world, kind, arguments, seed=seed), clock, ids)
    with capture_logs():
        async with asyncio.timeout(BOUND_S):
            await run.drive()
    state: RunState = run.state
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    assert state.replay_buffer.counts()["balance"] == 0
    assert (await fake_world.verified(log)).clean
    steps = [event for event in await events_of(log, topics.EXPERIMENTS) if isinstance(event, StepCompleted)]
    figures = [step.metrics for step in steps if "roles/proposer/reward" in step.metrics]
    for role in ("proposer", "solver"):
        rewards = [of_step[f"roles/{role}/reward"] for of_step in figures]
        print(kind, seed, role, mean(rewards[:4]), mean(rewards[-4:]))
        assert mean(rewards[-4:]) > mean(rewards[:4]) + 0.15, (role, rewards)
    produced = [event for event in await events_of(log, topics.EXPERIENCES) if isinstance(event, ExperienceProduced)]
    assert {step.role for event in produced for step in event.steps} == {"proposer", "solver"}
    await log.close()


def faulty_spec(folder: Path, fake_world: Any, workflow: str, named: Sequence[str]) -> ExperimentSpec:
    """The game on fake engines, with these roles compared in their rollout."""
    spec: ExperimentSpec = fake_world.spec(folder)
    warm, game = spec.stages
    assert game.taskset is not None
    game = msgspec.structs.replace(
        game,
        algorithm=msgspec.structs.replace(
            game.algorithm, advantage="hierarchical_grpo", advantage_args={"rollout_roles": list(named)}
        ),
        taskset=msgspec.structs.replace(game.taskset, workflow=workflow),
        rollout=msgspec.structs.replace(game.rollout, max_retry_times=0),
        evals=(),
    )
    return msgspec.structs.replace(spec, stages=(warm, game))


@pytest.mark.parametrize(
    ("workflow", "named", "fault"),
    [
        ("StrangeGame", ["solver"], "role 'proposer', and declares solver"),
        ("NanGame", ["solver"], "reward nan of role 'proposer', which is not finite"),
        ("SumsGame", ["solvr"], "role 'solvr' is unknown: workflow 'faulty_game' declares proposer, solver"),
    ],
)
@pytest.mark.anyio
async def test_faults_of_roles_are_told_with_the_role(
    tmp_path: Path,
    clock,
    ids,
    fake_world,
    monkeypatch: pytest.MonkeyPatch,
    workflow: str,
    named: Sequence[str],
    fault: str,
) -> None:
    monkeypatch.setitem(WORKFLOWS._table, "faulty_game", f"{__name__}:{workflow}")
    log = await SqliteLog.open(tmp_path / "log")
    run = await fake_world.run(log, faulty_spec(tmp_path, fake_world, "faulty_game", named), clock, ids)
    with capture_logs() as lines:
        driven = asyncio.ensure_future(run.drive())
        await until(lambda: driven.done() or any(fault in line.get("reason", "") for line in lines))
        driven.cancel()
        await asyncio.gather(driven, return_exceptions=True)
    assert any(fault in line.get("reason", "") for line in lines), lines
    await log.close()
