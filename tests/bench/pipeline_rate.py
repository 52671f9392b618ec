"""An experience pipeline of five operators: its processor time, and runs with it against runs without; prints JSON.

`python -P tests/bench/pipeline_rate.py [--pairs 5] [--steps 60]`. Runs are of fake engines in this process, on the
embedded log, with and without the pipeline in turns; all of it is one process, so processor time is everybody's.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import msgspec

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))
sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))  # before the other `conftest`

from conftest import FakeWorld
from figures import median_of, median_ratio, read_options, tell

from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.streams.events.experience import ExperienceProduced, Span
from rftd.streams.folds.spine import Status
from rftd.streams.log.arrays import Array
from rftd.streams.spec.spec import AlgorithmSpec, PolicySpec, RolloutSpec
from rftd.streams.spec.stage_parts import OperatorSpec
from rftd.streams.sqlite.log import SqliteLog
from rftd.workers.pipelines.pipeline import OperatorChain

FIVE = (
    OperatorSpec(
        name="reward_shaping_mapper", args={"reward_shaping_configs": [{"stats_key": "reward", "weight": 0.5}]}
    ),
    OperatorSpec(name="mask_response_truncated"),
    OperatorSpec(name="pass_rate_calculator"),
    OperatorSpec(name="invalid_reward_filter"),
    OperatorSpec(name="reward_filter", args={"threshold": -1.0}),
)
GROUPS = 4
MEMBERS = 8
BATCH = GROUPS * MEMBERS


class Spent(msgspec.Struct):
    """What a run took for each experience."""

    wall_us: float
    cpu_us: float


def operators_us(rounds: int = 2000) -> float:
    """Processor time of the operators alone, for each experience of a group of 8."""
    group = [
        ExperienceProduced(
            experience=UUID(int=number + 1),
            group=UUID(int=99),
            rollout=number,
            stage=0,
            lease=UUID(int=98),
            tokens=Array.of([1, 2, 3], "u4"),
            prompt_tokens=1,
            loss_mask=Array.of([1, 1], "u1"),
            logprobs=Array.of([-1.0, -1.0], "f4"),
            spans=(Span(0, 0, 0, 2),),
            reward=float(number % 2),
            metrics={"reward": 1.0},
        )
        for number in range(MEMBERS)
    ]
    chain = OperatorChain(FIVE)
    began_s = time.process_time()
    for _ in range(rounds):
        chain.judge(group)
    return (time.process_time() - began_s) / rounds / MEMBERS * 1e6


async def run(steps: int, pipeline: tuple[OperatorSpec, ...]) -> Spent:
    """Runs an experiment to its end."""
    clock = SystemClock()
    ids = SystemIds(clock)
    rollout = RolloutSpec(engine="fake", concurrency=16, max_timeout_s=60.0)
    policy = PolicySpec(max_staleness_versions=4, max_inflight_batches=4)
    with TemporaryDirectory() as folder:
        spec = FakeWorld.spec(
            Path(folder),
            total_steps=steps,
            batch_size=GROUPS,
            train_batch_size=BATCH,
            algorithm=AlgorithmSpec(kind="grpo", repeat_times=MEMBERS, advantage="grpo", policy_loss="ppo"),
            rollout=rollout,
            pipeline=pipeline,
            policy=policy,
        )
        log = await SqliteLog.open(Path(folder) / "log")
        driven = await FakeWorld.run(log, spec, clock, ids)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        async with asyncio.timeout(600):
            await driven.drive()
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        assert driven.state.spine.status is Status.COMPLETED, driven.state.spine.reason
        await log.close()
    experiences = steps * BATCH
    return Spent(wall_s / experiences * 1e6, cpu_s / experiences * 1e6)


def main() -> None:
    """Pairs of runs, without and with the operators."""
    arguments = read_options(__doc__, pairs=5, steps=60)
    asyncio.run(run(5, FIVE))  # imports
    without: list[Spent] = []
    piped: list[Spent] = []
    for _ in range(arguments.pairs):
        without.append(asyncio.run(run(arguments.steps, ())))
        piped.append(asyncio.run(run(arguments.steps, FIVE)))
    tell(
        {
            "operators_us": round(operators_us(), 1),
            "added_cpu_us": median_of(
                (one.cpu_us - other.cpu_us for one, other in zip(piped, without, strict=True)), 1
            ),
            "cpu_ratio": median_ratio([one.cpu_us for one in piped], [one.cpu_us for one in without], 3),
            "rate_ratio": median_ratio([one.wall_us for one in without], [one.wall_us for one in piped], 3),
            "experiences_per_s": median_of(1e6 / one.wall_us for one in without),
        }
    )


if __name__ == "__main__":
    main()
