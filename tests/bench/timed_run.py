"""One run of the real daemon with its real worker processes, whose rollouts and steps only take time; its figures.

`rftd serve` on a SQLite log, explorer processes with fake engines whose latencies are log-normal, and a trainer process
that sleeps. Figures come from the log: steps by the times of their records, lengths by what explorers measured.
"""

from __future__ import annotations

import asyncio
import math
import sys
import tempfile
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

from synthetic.daemon.scene import Scene

from rftd.ops.two_samples import ks_test
from rftd.streams.events.batch import BatchPlanned, ExperienceRetired
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.step import StepCompleted
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.sqlite.view import SqliteView
from rftd.workers.control.simulator.system import LongTail

TEXT = """
project: bench
name: timed
checkpoint_root_dir: ./checkpoints
algorithm:
  algorithm_type: grpo
  repeat_times: 2
  sample_strategy: staleness_control
  sample_strategy_args: {max_staleness: 2}
model: {model_path: fake, max_model_len: 64, max_prompt_tokens: 32}
buffer:
  explorer_input:
    taskset:
      name: sums
      path: ./train.jsonl
      format: {prompt_type: raw, prompt_key: question, response_key: answer}
      default_workflow_type: simple_workflow
      default_reward_fn_type: exact_match_reward
explorer:
  eval_interval: 1000000
  rollout_model: {engine_type: fake}
trainer: {trainer_type: fake, save_interval: 1000000, max_idle_steps: 0}
synchronizer: {sync_method: checkpoint, sync_style: fully_async, sync_interval: 1}
"""
LEFT_OUT_AT_THE_END = 4
"""Steps for which explorers ran dry, in an asynchronous run."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of one run."""

    slots: int
    """Rollouts at once, of all explorers."""
    processes: int
    """Explorer processes that share them."""
    step_s: float
    batch: int
    repeat_times: int
    lengths: LongTail
    steps: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    throughput_per_s: float
    steps: int
    explorer_processes: int
    slots: int
    step_s: float
    staleness_mean_versions: float
    staleness_max_versions: int
    produced: int
    dropped: dict[str, float]
    idle_trainer: float
    length_mean_generated_s: float
    length_mean_trained_s: float
    ks_p: float


ASYNC = ("synchronizer.sync_style=fully_async", "explorer.max_inflight_batches=3")


def fixed(offset: int) -> tuple[str, ...]:
    """Overrides: explorers take new weights when their rollouts have ended; with offset 0 nobody runs ahead."""
    strategy = f"algorithm.sample_strategy_args={{max_staleness: {offset}}}"
    return ("synchronizer.sync_style=fixed", f"synchronizer.sync_offset={offset}", strategy)


def timed_run(sizes: Sizes, *overrides: str) -> Figures:
    """Runs it to its end and reads the log."""
    lengths = sizes.lengths
    latency = f"{{latency_s: {lengths.median_s}, latency_sigma: {lengths.sigma:.6f}, latency_cap: {lengths.cut}}}"
    patience_s = math.ceil(3 * lengths.median_s * lengths.cut)
    with tempfile.TemporaryDirectory(prefix="rftd-") as name:
        scene = Scene(Path(name))
        with scene.host:
            run = scene.submit(
                TEXT,
                f"algorithm.repeat_times={sizes.repeat_times}",
                f"buffer.batch_size={sizes.batch // sizes.repeat_times}",
                f"buffer.total_steps={sizes.steps}",
                f"explorer.runner_per_model={-(-sizes.slots // sizes.processes)}",
                f"explorer.rollout_model.engine_num={sizes.processes}",
                f"explorer.rollout_model.extra_engine_args={latency}",
                f"explorer.max_timeout={patience_s}",
                f"trainer.engine_args={{step_s: {sizes.step_s}}}",
                *overrides,
            )
            page = scene.until_ended(run, timeout_s=(sizes.step_s + patience_s) * sizes.steps + 120)
        summary = page.experiment.summary
        assert summary.state == "completed", (summary.state, summary.code, summary.reason)
        return asyncio.run(figures_of(scene.data.log, sizes, run_ahead="sync_style=fully_async" in " ".join(overrides)))


async def figures_of(log: Path, sizes: Sizes, *, run_ahead: bool) -> Figures:
    """The figures of the run, from the records of the only experiment."""
    done_s: dict[int, float] = {}
    trained: dict[int, BatchPlanned] = {}
    lengths_s: dict[UUID, float] = {}
    retired: dict[str, int] = {}
    view = await SqliteView.open(log)
    try:
        for partition in sorted(
            each for each in await view.heads() if each.stream in (topics.EXPERIMENTS, topics.EXPERIENCES)
        ):
            position = 0
            while records := await view.read(partition, position):
                position = records[-1].offset + 1
                for decoded in map(decode, records):
                    match decoded.event:
                        case StepCompleted() as event:
                            done_s[event.step] = decoded.head.time_ns / 1e9
                        case BatchPlanned() as event:
                            trained[event.step] = event
                        case ExperienceProduced() as event:
                            lengths_s[event.experience] = event.duration_s
                        case ExperienceRetired() as event:
                            retired[event.reason] = retired.get(event.reason, 0) + len(event.experiences)
    finally:
        await view.close()
    first = max(1, len(done_s) // 10)
    last = max(first + 1, len(done_s) - LEFT_OUT_AT_THE_END * run_ahead)
    took_s = done_s[last] - done_s[first]
    items = [item for step in range(first + 1, last + 1) for item in trained[step].experiences]
    used = [lengths_s[item.experience] for plan in trained.values() for item in plan.experiences]
    every = list(lengths_s.values())
    # What no batch was left for is no drop: it was generated beyond the end.
    over = retired.pop("stage_ended", 0)
    return Figures(
        throughput_per_s=round(len(items) / took_s, 2),
        steps=len(done_s),
        explorer_processes=sizes.processes,
        slots=sizes.slots,
        step_s=round(sizes.step_s, 3),
        staleness_mean_versions=round(float(np.mean([item.staleness_versions for item in items])), 3),
        staleness_max_versions=max(item.staleness_versions for item in items),
        produced=len(every),
        dropped={reason: round(count / (len(every) - over), 4) for reason, count in sorted(retired.items())},
        idle_trainer=round(max(0.0, 1 - sizes.step_s * (last - first) / took_s), 3),
        length_mean_generated_s=round(float(np.mean(every)), 3),
        length_mean_trained_s=round(float(np.mean(used)), 3),
        ks_p=ks_test(every, used).p,
    )
