"""The demo's stages as experiments of their own: the SFT checkpoint, and GRPO from it until a mean reward is reached.

Real daemon, real log, real processes. The time is read from the log: from the first request to the rollout engine (a
task is leased and an explorer has loaded its first weights) to the plan of the first batch of 256 rollouts whose mean
reward is the target; a plan is written when its last rollout is known.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import yaml

from rftd.daemon.config.loading import load_text
from rftd.daemon.demo.demo import ENDED, experiment_text
from rftd.daemon.demo.sums import write_sums
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.client.host import DaemonHost
from rftd.daemon.http.views import commands, experiments
from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.streams.events.batch import BatchPlanned, ExperienceRetired
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.step import StepCompleted
from rftd.streams.events.task import TaskLeased
from rftd.streams.events.weights import WeightsActivated
from rftd.streams.log import topics
from rftd.streams.log.codec import decode, decode_head
from rftd.streams.log.topics import partition_of
from rftd.streams.sqlite.view import SqliteView
from rftd.workers.models.tiny_model import make_tiny_model

POLL_S = 0.5
ASK_S = 5.0
TIMEOUT_S = 500.0
STEP, REWARD = "step.completed", "critic/rewards/mean"


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """How the GRPO stage went."""

    reached_s: float | None
    """None if the target was never reached."""
    steps: int
    """Trained before the batch that reached it."""
    ran_s: float
    reward_first: float
    reward_last: float
    rollouts: int
    step_ms: float
    """Mean time of a training step in the engine."""
    trainer_busy: float
    """Share of the time in which the trainer trained."""
    staleness_mean_versions: float
    staleness_max_versions: int
    dropped: dict[str, int]


def make_checkpoint(folder: Path, *, seed: int) -> Path:
    """The model after the demo's SFT stage, in Hugging Face's layout; its tasks lie below `folder`, too."""
    write_sums(folder / "tasks", seed=seed)
    make_tiny_model(folder / "model", seed=seed)
    demo = yaml.safe_load(experiment_text())
    demo["stages"] = demo["stages"][:1]
    del demo["buffer"]["explorer_input"]["eval_tasksets"]
    demo["checkpoint_root_dir"] = str(folder / "sft")
    with DaemonHost(folder / "data-sft", folder / "sft.log") as host:
        experiment = _submit(host, demo, folder, seed)
        asyncio.run(_until(host, DataFolder(folder / "data-sft").log, experiment, None))
    found = sorted(folder.glob("sft/**/actor/huggingface/model.safetensors"))
    assert len(found) == 1, found
    return found[0].parent


def train(
    folder: Path, model: Path, *, run: str, seed: int, target: float, changed: Mapping[str, Any], keep: bool = False
) -> Reached:
    """The demo's GRPO stage from `model` until the target is reached, in a daemon of its own; `changed` overrides.

    With `keep` it goes on to its end.
    """
    demo = yaml.safe_load(experiment_text())
    del demo["stages"], demo["buffer"]["explorer_input"]["eval_tasksets"]
    demo["checkpoint_root_dir"] = str(folder / run)
    demo["model"]["model_path"] = str(model)
    for path, value in changed.items():
        *parents, last = path.split(".")
        place = demo
        for each in parents:
            place = place.setdefault(each, {})
        place[last] = value
    data = DataFolder(folder / f"data-{run}")
    with DaemonHost(data.root, folder / f"{run}.log") as host:
        experiment = _submit(host, demo, folder, seed)
        asyncio.run(_until(host, data.log, experiment, None if keep else target))
    return asyncio.run(_reached(data.log, target))


def _submit(host: DaemonHost, demo: Mapping[str, Any], folder: Path, seed: int) -> UUID:
    environ = {**os.environ, "RFTD_DEMO_DIR": str(folder), "RFTD_DEMO_SEED": str(seed)}
    submission = load_text(yaml.safe_dump(demo), "demo.yaml", overrides=(), environ=environ, cwd=folder)
    with Client(replace(host.settings, timeout_s=30.0), {}) as client:
        request = str(SystemIds(SystemClock()).new())
        return UUID(
            client.send(commands.submit, commands.Submit(config=submission.config), request_id=request).value.id
        )


async def _until(host: DaemonHost, log: Path, experiment: UUID, target: float | None) -> None:
    """Returns once it has ended, or trained on a batch with the target and was cancelled.

    Looks into the file of the log, which costs the daemon nothing; its API is asked seldom.
    """
    deadline_s, asked_s, position, best = time.monotonic() + TIMEOUT_S, time.monotonic(), 0, 0.0
    with Client(replace(host.settings, timeout_s=30.0), {}) as client:
        spine = partition_of(topics.EXPERIMENTS, experiment)
        view = await SqliteView.open(log)
        try:
            while True:
                while records := await view.read(spine, position):
                    position = records[-1].offset + 1
                    for record in records:
                        if decode_head(record).type == STEP and isinstance(step := decode(record).event, StepCompleted):
                            best = max(best, step.metrics.get(REWARD, 0.0))
                if target is not None and best >= target:
                    client.send(commands.cancel, commands.Reason(), name=str(experiment))
                    target = None
                if time.monotonic() - asked_s >= (ASK_S if target is not None else POLL_S):
                    summary, asked_s = client.ask(experiments.summary, name=str(experiment)).value, time.monotonic()
                    if summary.state in ENDED:
                        assert summary.state in ("completed", "cancelled"), (summary.state, summary.reason)
                        return
                assert time.monotonic() < deadline_s, experiment
                await asyncio.sleep(POLL_S)
        finally:
            await view.close()


async def _reached(log: Path, target: float) -> Reached:
    """The figures of the GRPO stage, from the records of the only experiment."""
    leased_s: list[float] = []
    active_s: list[float] = []
    plans: dict[int, tuple[float, BatchPlanned]] = {}
    steps: dict[int, StepCompleted] = {}
    rewards: dict[UUID, float] = {}
    dropped: dict[str, int] = {}
    view = await SqliteView.open(log)
    try:
        for partition in sorted(await view.heads()):
            position = 0
            while records := await view.read(partition, position):
                position = records[-1].offset + 1
                for decoded in map(decode, records):
                    now_s = decoded.head.time_ns / 1e9
                    match decoded.event:
                        case TaskLeased():
                            leased_s.append(now_s)
                        case WeightsActivated():
                            active_s.append(now_s)
                        case BatchPlanned() as event:
                            plans[event.step] = (now_s, event)
                        case StepCompleted() as event:
                            steps[event.step] = event
                        case ExperienceProduced() as event:
                            rewards[event.experience] = event.reward
                        case ExperienceRetired() as event:
                            dropped[event.reason] = dropped.get(event.reason, 0) + len(event.experiences)
    finally:
        await view.close()
    began_s = max(min(leased_s), min(active_s))
    curve = [
        (at_s - began_s, float(np.mean([rewards[item.experience] for item in plan.experiences])))
        for _, (at_s, plan) in sorted(plans.items())
    ]
    hit = next((number for number, (_, reward) in enumerate(curve) if reward >= target), None)
    last = len(curve) - 1 if hit is None else hit
    items = [item.staleness_versions for _, plan in list(plans.values())[: last + 1] for item in plan.experiences]
    done_s = [steps[step].duration_s for step in range(1, last + 1) if step in steps]
    return Reached(
        reached_s=None if hit is None else round(curve[hit][0], 3),
        steps=last,
        ran_s=round(curve[last][0], 3),
        reward_first=round(curve[0][1], 4),
        reward_last=round(curve[last][1], 4),
        rollouts=len(rewards),
        step_ms=round(1e3 * float(np.mean(done_s)), 2),
        trainer_busy=round(sum(done_s) / curve[last][0], 3),
        staleness_mean_versions=round(float(np.mean(items)), 2),
        staleness_max_versions=max(items),
        dropped=dropped,
    )
