"""The experiment of a world: small, of every kind that the seeds can ask for."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from pathlib import Path

import msgspec

from rftd.daemon.config.resolve.policy import standstill
from rftd.daemon.run.supervisor.preflight import preflight
from rftd.streams.log.bounds import LAST_INDEX
from rftd.streams.spec.engines import ServingSpec
from rftd.streams.spec.schedule import needed_staleness, trainer_interval, window_steps
from rftd.streams.spec.sections import DynamicTimeout, Format, OverRollout, StragglerReissue, Synchronizer
from rftd.streams.spec.spec import (
    AlgorithmSpec,
    ExperimentSpec,
    ModelSpec,
    PolicySpec,
    PrioritySpec,
    RolloutSpec,
    SamplingSpec,
    StageSpec,
    TasksetSpec,
    TrainerSpec,
)

ROLLOUT_TIMEOUT_S = 6.0
MODEL = ModelSpec(path="fake", max_model_len=64, max_prompt_tokens=32, max_response_tokens=32)

SERVED_MODEL = msgspec.structs.replace(MODEL, max_model_len=512, max_prompt_tokens=480)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What varies between experiments."""

    warmup_steps: int
    """0: no SFT stage."""
    steps: int
    groups: int
    """Of a batch."""
    repeat_times: int
    sync: Synchronizer
    policy: PolicySpec
    explorers: int
    concurrency: int
    save_interval: int
    keep: int
    eval_interval: int
    evals: bool
    deterministic: bool
    selector: str
    latency_s: float
    train_rows: int
    latency_sigma: float = 0.0
    lease_rollouts: int = 0
    timeout_ratio: float = 0.0
    over_ratio: float = 0.0
    over_keep_partial: bool = False
    reissue_ratio: float = 0.0
    serves: bool = False
    """Its tasks are conversations of strangers, and nothing else is trained."""


def draw_shape(random: random.Random) -> Shape:
    """A shape drawn from everything that the product allows."""
    deterministic = random.random() < 0.25
    if deterministic:
        sync, policy = (
            Synchronizer(sync_method="checkpoint", sync_style="fixed"),
            PolicySpec(kind="in_order", max_staleness_versions=0),
        )
    elif random.random() < 0.5:
        interval, offset = random.choice([(1, 0), (1, 1), (2, 0), (2, 1), (1, 2)])
        sync = Synchronizer(sync_method="checkpoint", sync_style="fixed", sync_interval=interval, sync_offset=offset)
        policy = PolicySpec(max_staleness_versions=interval + offset - 1, max_inflight_batches=interval + offset)
    else:
        sync = Synchronizer(sync_method="checkpoint", sync_style="fully_async", sync_interval=random.choice([1, 1, 2]))
        policy = PolicySpec(max_staleness_versions=random.randint(1, 3), max_inflight_batches=random.randint(1, 3))
    return Shape(
        warmup_steps=random.choice([0, 1, 2]),
        steps=random.randint(2, 4),
        groups=random.randint(1, 3),
        repeat_times=random.randint(2, 3),
        sync=sync,
        policy=policy,
        explorers=random.randint(1, 2),
        concurrency=random.choice([2, 4, 8]),
        save_interval=random.choice([0, 1, 1, 2, 3]),
        keep=random.choice([0, 0, 1, 2]),
        eval_interval=random.choice([0, 1, 2]),
        evals=random.random() < 0.5,
        deterministic=deterministic,
        selector=random.choice(["sequential", "shuffle"]),
        latency_s=random.choice([0.0, 0.05, 0.3]),
        train_rows=random.choice([5, 12, 40]),
    )


def draw_driven(shape: Shape, random: random.Random) -> Shape:
    """The same with sync points at which one side asks the other, or with an interval for each side."""
    if shape.deterministic:
        return shape
    sync = Synchronizer(
        sync_method="checkpoint",
        sync_style=random.choice(["explorer_driven", "explorer_driven", "trainer_driven", "fixed"]),
        sync_offset=random.choice([0, 0, 1]),
        explorer_sync_interval=random.choice([1, 1, 2, 3]),
        trainer_sync_interval=random.choice([1, 2, 2, 3]),
        sync_timeout=random.choice([3600.0, 3600.0, 2.0]),
    )
    window, needed = window_steps(sync, 0), needed_staleness(sync)
    policy = PolicySpec(
        max_staleness_versions=needed + random.choice([0, 0, 1, 3]),
        max_inflight_batches=window if sync.sync_style == "fixed" else max(2, window),
    )
    return msgspec.structs.replace(shape, sync=sync, policy=policy)


def draw_slow(shape: Shape, random: random.Random) -> Shape:
    """The same with rollouts of which some are slow, and what may be done about them."""
    waits = shape.sync.sync_style == "fixed"
    return msgspec.structs.replace(
        shape,
        latency_sigma=random.choice([0.0, 1.0, 2.0]),
        lease_rollouts=random.choice([0, 1, 2]),
        timeout_ratio=0.0 if shape.deterministic else random.choice([0.0, 2.0]),
        over_ratio=0.0 if waits else random.choice([0.0, 0.5, 0.9]),
        over_keep_partial=random.random() < 0.5,
        reissue_ratio=random.choice([0.0, 1.5]),
    )


def draw_policy(shape: Shape, random: random.Random) -> Shape:
    """The same under another policy, and maybe with a buffer whose experiences are used again."""
    batch, interval = shape.groups * shape.repeat_times, trainer_interval(shape.sync) or 1
    kind = random.choice(["hard_bound", "weight_fifo", "windowed", "areal", "verl_window", "ready_first", "sample_lag"])
    sweeps = kind in ("hard_bound", "weight_fifo", "windowed")
    own = {
        "hard_bound": {"abort_inflight": random.random() < 0.5},
        "windowed": {"freshest_first": random.random() < 0.5},
        "areal": {"max_concurrent": random.choice([0, 3 * shape.repeat_times])},
        "verl_window": {"trigger_parameter_sync_step": interval, "staleness_threshold": random.choice([0.0, 0.5, 1.0])},
        "sample_lag": {"max_lag_samples": random.choice([0, 1, 2 * batch])},
    }
    max_uses = random.choice([1, 2, 2, 3, 0])
    replays = max_uses != 1
    policy = PolicySpec(
        kind=kind,
        max_staleness_versions=shape.policy.max_staleness_versions,
        bounded=sweeps and (not replays or random.random() < 0.5),
        max_inflight_batches=shape.policy.max_inflight_batches,
        args=own.get(kind, {}),
        priority=PrioritySpec(kind="linear_decay", args={"decay": random.choice([0.0, 0.6, 2.0])})
        if replays
        else PrioritySpec(),
        max_uses=max_uses,
        cooldown_s=random.choice([0.0, 0.5, 3.0]) if replays else 0.0,
        capacity=random.choice([0, batch, 3 * batch]),
        evict_when_full=replays,
    )
    refused = standstill(policy, interval=interval, batch=batch, repeat_times=shape.repeat_times)
    return shape if shape.deterministic or refused else msgspec.structs.replace(shape, policy=policy)


def draw_patient(shape: Shape, random: random.Random) -> Shape:
    """The same under a policy that forms no batch while a group is under way that would be too old for the next.

    With enough steps, and so slow rollouts, that there are such groups.
    """
    policy = shape.policy
    if policy.kind not in ("hard_bound", "weight_fifo") or not policy.bounded:
        return shape
    waits = msgspec.structs.replace(policy, args=policy.args | {"wait": True})
    return msgspec.structs.replace(
        shape,
        policy=waits,
        steps=random.randint(4, 8),
        latency_s=random.choice([0.1, 0.3]),
        latency_sigma=random.choice([1.0, 2.0]),
    )


def make_spec(shape: Shape, *, data: Path, job: Path, seed: int) -> ExperimentSpec:
    """The shape as a specification whose files lie in `data` (shared, only read) and in `job`."""
    taskset = _taskset(data, "train", shape.train_rows, shape)
    engines = {
        "model": MODEL,
        "rollout": RolloutSpec(
            engine="fake",
            explorers=shape.explorers,
            concurrency=shape.concurrency,
            max_timeout_s=ROLLOUT_TIMEOUT_S,
            max_retry_times=1,
            lease_rollouts=shape.lease_rollouts,
            over_rollout=OverRollout(
                ratio=shape.over_ratio, wait_after_min=0.5, return_partial_tasks=shape.over_keep_partial
            ),
            dynamic_timeout=DynamicTimeout(enable=shape.timeout_ratio > 0, ratio=shape.timeout_ratio or 3.0),
            straggler_reissue=StragglerReissue(enable=shape.reissue_ratio > 0, ratio=shape.reissue_ratio or 3.0),
            engine_args={"latency_s": shape.latency_s, "latency_sigma": shape.latency_sigma},
        ),
        "trainer": TrainerSpec(engine="fake", save_interval=shape.save_interval, max_checkpoints_to_keep=shape.keep),
    }
    warmup = StageSpec(
        name="warmup",
        kind="train",
        folder=str(job / "warmup"),
        total_steps=shape.warmup_steps,
        batch_size=2,
        train_batch_size=2,
        algorithm=AlgorithmSpec(kind="sft"),
        dataset=taskset,
        **engines,
    )
    rft = StageSpec(
        name="rft",
        kind="both",
        folder=str(job / "rft"),
        total_steps=shape.steps,
        batch_size=shape.groups,
        train_batch_size=shape.groups * shape.repeat_times,
        algorithm=AlgorithmSpec(kind="grpo", repeat_times=shape.repeat_times, advantage="grpo", policy_loss="ppo"),
        taskset=taskset,
        # In every third world, and by its number: what is drawn by chance stays as it was.
        more_tasksets=(_taskset(data, "more", 7, shape),) if seed % 3 == 0 else (),
        evals=(_taskset(data, "held_out", 6, shape),) if shape.evals else (),
        eval_interval=shape.eval_interval,
        policy=shape.policy,
        synchronizer=shape.sync,
        **engines,
    )
    stages = (warmup, rft) if shape.warmup_steps else (rft,)
    return ExperimentSpec(
        project="sim",
        name=f"sim-{seed}",
        job_dir=str(job),
        stages=(_served(rft, job),) if shape.serves else stages,
        deterministic=shape.deterministic and not shape.serves,
        seed=seed,
        config={},
    )


def _served(stage: StageSpec, job: Path) -> StageSpec:
    """The stage as one that serves, with the schedule and the policy that the configuration gives it."""
    return msgspec.structs.replace(
        stage,
        model=SERVED_MODEL,
        taskset=TasksetSpec(
            name="conversations",
            path=str(job / "rft" / "serving"),
            repeat_times=stage.algorithm.repeat_times,
            sampling=SamplingSpec(max_tokens=8),
            rows=LAST_INDEX,
        ),
        more_tasksets=(),
        evals=(),
        eval_interval=0,
        max_read_timeout_s=1e9,
        policy=PolicySpec(bounded=False, max_staleness_versions=2, max_inflight_batches=2),
        synchronizer=Synchronizer(sync_method="checkpoint", sync_style="fully_async"),
        rollout=msgspec.structs.replace(
            stage.rollout,
            over_rollout=OverRollout(),
            dynamic_timeout=DynamicTimeout(),
            straggler_reissue=StragglerReissue(),
        ),
        serving=ServingSpec(address="127.0.0.1", port=8010),
    )


@lru_cache(maxsize=64)
def _counted(data: Path, name: str, rows: int) -> TasksetSpec:
    """A taskset with its rows counted as the daemon does when it accepts an experiment."""
    path = data / f"{name}-{rows}.jsonl"
    if not path.exists():
        lines = (json.dumps({"question": f"{a}+{a % 7}=", "answer": str(a + a % 7)}) + "\n" for a in range(rows))
        path.write_text("".join(lines))
    spec = TasksetSpec(
        name=name,
        path=str(path),
        format=Format(prompt_type="raw", prompt_key="question", response_key="answer"),
        workflow="simple_workflow",
        reward="exact_match_reward",
        sampling=SamplingSpec(max_tokens=8),
    )
    stage = StageSpec(
        name="count",
        kind="both",
        total_steps=1,
        batch_size=1,
        train_batch_size=1,
        algorithm=AlgorithmSpec(kind="grpo", repeat_times=2),
        model=MODEL,
        taskset=spec,
        rollout=RolloutSpec(engine="fake"),
        trainer=TrainerSpec(engine="fake"),
    )
    counting = ExperimentSpec(project="sim", name="count", job_dir=str(data), stages=(stage,), config={})
    counted = preflight(counting).stages[0].taskset
    assert counted is not None
    return counted


def _taskset(data: Path, name: str, rows: int, shape: Shape) -> TasksetSpec:
    return msgspec.structs.replace(_counted(data, name, rows), selector=shape.selector)
