"""A laboratory for the learning signal: batches of one experiment, planned, assembled and trained as in a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from synthetic.worlds.desk import BATCH, REPEAT, Desk, stage_of

from rftd.ops.ids import derive
from rftd.streams.events.experience import ExperienceProduced, Span
from rftd.streams.events.registry import Event
from rftd.streams.events.step import StepCompleted
from rftd.streams.log.arrays import Array
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import AlgorithmSpec, StageSpec, TrainerSpec
from rftd.workers.control.closing import close_groups
from rftd.workers.control.controller import Controller
from rftd.workers.control.planner import Planner
from rftd.workers.engines.fake.trainer import FakeTrainerEngine
from rftd.workers.training.assembly import Assembly

MIXED = (0.0, 1.0, 0.0, 1.0)
EQUAL = (0.0,) * REPEAT
RIGHT = (1.0,) * REPEAT
STEPS = 60


@dataclass(frozen=True)
class Rollouts:
    """The rollouts of every group of a run; none of them succeeds if there are no rewards."""

    rewards: Sequence[float] = MIXED
    tokens: int = 2
    masked: bool = False
    finish: str = "stop"


@dataclass(frozen=True)
class Run:
    """A run that is said to teach nothing, for this cause."""

    cause: str
    rollouts: Rollouts = Rollouts(rewards=(0.0,) * REPEAT)
    algorithm: dict[str, Any] = field(default_factory=dict)
    lr: float = 1e-6
    engine: dict[str, Any] = field(default_factory=dict)
    says: str = ""
    max_idle_steps: int = 5

    @property
    def stage(self) -> StageSpec:
        objective = AlgorithmSpec(
            kind="grpo",
            repeat_times=REPEAT,
            advantage="grpo",
            policy_loss="ppo",
            optimizer=Optimizer(lr=self.lr, decay_all=True),
        )
        return stage_of(
            total_steps=STEPS,
            algorithm=msgspec.structs.replace(objective, **self.algorithm),
            trainer=TrainerSpec(
                engine="fake",
                max_idle_steps=self.max_idle_steps,
                max_nonfinite_steps=99,
                engine_args={"step_s": 0.0, **self.engine},
            ),
        )


class Lab:
    """One experiment at a desk, whose batches are planned, assembled and trained as in a run."""

    def __init__(self, run: Run) -> None:
        self.desk = Desk(run.stage)
        self.rollouts = run.rollouts
        self.planner = Planner(self.desk.state)
        self.controller = Controller(self.desk.state)
        self.engine = FakeTrainerEngine()
        spec = self.desk.state.spine.spec
        assert spec is not None
        self.engine.open(spec, "")
        self.engine.begin_stage(spec.stages[0])
        self.log = MemoryLog()
        self.copied = 0
        self.assembly = Assembly(self.log, spec)
        self.now_ns = self.desk.state.spine.recorded_ns

    @property
    def events(self) -> list[Event]:
        """All that the controller says now."""
        return self.desk.obey(self.controller.decide().events)

    def explore(self) -> None:
        """A batch's worth of groups is produced and closed."""
        for _ in range(BATCH // REPEAT):
            sequence = self.desk.state.groups.next_sequence.get(0, 0)
            lease = self.desk.lease(sequence, self.desk.id)
            for rollout in range(REPEAT):
                if not self.rollouts.rewards:
                    self.desk.fail(lease, rollout)
                    continue
                of = self.rollouts
                mask = np.full(of.tokens, not of.masked)
                produced = ExperienceProduced(
                    experience=derive(lease.group, "rollout", rollout, "experience"),
                    group=lease.group,
                    rollout=rollout,
                    stage=0,
                    lease=lease.lease,
                    tokens=Array.of([1] + [2] * of.tokens, "u4"),
                    prompt_tokens=1,
                    loss_mask=Array.of(mask, "u1"),
                    logprobs=Array.of(np.full(of.tokens, -1.0), "f4"),
                    spans=(Span(self.desk.state.spine.version, 0, 0, of.tokens),),
                    reward=of.rewards[rollout],
                    finish=of.finish,
                )
                self.desk.put(produced, key=lease.group)
        self.desk.obey(close_groups(self.desk.state, stage_over=False))

    async def batch(self) -> None:
        """One batch: explored, and trained if the planner forms it."""
        spine = self.desk.state.spine
        self.explore()
        self.now_ns += 10**9
        self.desk.obey(self.planner.decide(self.desk.positions, self.now_ns).events)
        if (step := spine.version + 1) not in spine.plans:
            return
        await self.log.append(self.desk.recorder.drafts[self.copied :])
        self.copied = len(self.desk.recorder.drafts)
        plan = spine.plans[step].event
        batch = await self.assembly.batch(plan, 0)
        result = self.engine.train(batch)
        done = StepCompleted(
            batch=plan.batch,
            step=step,
            stage=0,
            generation=0,
            checksum=f"c{step}",
            items=BATCH,
            tokens=result.tokens,
            duration_s=0.1,
            metrics=batch.metrics | result.metrics,
            skipped=result.skipped,
        )
        self.desk.put(done)
        self.desk.publish(step)


async def said_of(lab: Lab, rewards: Sequence[Sequence[float]]) -> list[Event]:
    """All that the controller says over batches with these rewards of each group."""
    said: list[Event] = []
    for of_group in rewards:
        lab.rollouts = Rollouts(of_group)
        await lab.batch()
        said += lab.events
    return said
