"""A supervisor on a log, with fake engines: experiments are submitted, forked, and run to their end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from rftd.daemon.config.loading import load_text
from rftd.daemon.run.operations import Forked
from rftd.daemon.run.supervisor.disk_guard import DiskGuard
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.daemon.serve.keeping import Keeping
from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.ids import Ids
from rftd.ops.logs import logger
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.log.log import EventLog
from rftd.streams.spec.split_submission import ROLES
from rftd.workers.training.record import TrainingRecord, read_record

EXPERIMENT = """
project: forks
name: sums
deterministic: true
checkpoint_root_dir: ./checkpoints
algorithm: {algorithm_type: grpo, repeat_times: 4, optimizer: {lr: 0.5}}
model: {model_path: fake, max_model_len: 64, max_prompt_tokens: 32}
buffer:
  batch_size: 4
  total_steps: 6
  explorer_input:
    taskset:
      name: sums
      path: ./train.jsonl
      format: {prompt_type: raw, prompt_key: question, response_key: answer}
      default_workflow_type: simple_workflow
      default_reward_fn_type: exact_match_reward
    eval_tasksets:
    - name: held
      path: ./eval.jsonl
      format: {prompt_type: raw, prompt_key: question, response_key: answer}
      default_workflow_type: simple_workflow
      default_reward_fn_type: exact_match_reward
explorer:
  eval_interval: 2
  runner_per_model: 16
  max_timeout: 20
  rollout_model: {engine_type: fake, engine_num: 1}
trainer: {trainer_type: fake, save_interval: 2, max_idle_steps: 0}
synchronizer: {sync_method: checkpoint, sync_style: fixed, sync_interval: 1, sync_offset: 0}
stages:
- stage_name: warmup
  mode: train
  algorithm: {algorithm_type: sft}
  buffer:
    train_batch_size: 4
    total_steps: 4
    trainer_input:
      experience_buffer:
        name: warmup
        path: ./train.jsonl
        format: {prompt_type: raw, prompt_key: question, response_key: answer}
- stage_name: rft
"""
"""Steps 1 to 4 are of a dataset, 5 to 10 of explored tasks."""

STEPS = 10


class ForkDesk:
    """Submits and forks on one log."""

    def __init__(self, folder: Path, log: EventLog, executor: Any, clock: Clock, ids: Ids) -> None:
        self.folder, self.log, self.executor = folder, log, executor
        self._clock, self._ids = clock, ids
        for name, rows in (("train", 40), ("eval", 12)):
            lines = (json.dumps({"question": f"{a}+{a % 10}=", "answer": str(a + a % 10)}) for a in range(rows))
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")

    @asynccontextmanager
    async def open(
        self,
        slots: int = 1,
        *,
        roles: frozenset[str] = ROLES,
        executor: Any = None,
        keeping: Keeping = Keeping(),  # noqa: B008 - it is frozen
        release_after_s: float = limits.RELEASE_AFTER_S,
        guard: DiskGuard | None = None,
    ) -> AsyncIterator[Supervisor]:
        """One daemon's supervisor, at work; a `guard` looks at its disk."""
        supervisor = self.idle(
            self.log, executor, roles=roles, slots=slots, keeping=keeping, release_after_s=release_after_s, guard=guard
        )
        at_work = [asyncio.ensure_future(supervisor.drive())]
        if guard is not None:
            at_work.append(asyncio.ensure_future(guard.run()))
        try:
            yield supervisor
        finally:
            for task in at_work:
                task.cancel()
            await asyncio.gather(*at_work, return_exceptions=True)

    def idle(self, log: EventLog, executor: Any = None, **options: Any) -> Supervisor:
        """One daemon's supervisor, which answers and runs nothing."""
        return Supervisor(
            log,
            executor or self.executor,
            owner=self._ids.new(),
            clock=self._clock,
            ids=self._ids,
            logger=logger(),
            **options,
        )

    async def left(self) -> None:
        """Returns once every worker has left and said so; their experiments have ended."""
        async with asyncio.timeout(60):
            await asyncio.gather(*(handle.task for handle in self.executor.handles), return_exceptions=True)

    async def submit(self, supervisor: Supervisor, *overrides: str) -> UUID:
        """An experiment, at its end."""
        experiment = await self.hand_in(supervisor, *overrides)
        await self.ended(experiment)
        return experiment

    async def hand_in(self, supervisor: Supervisor, *overrides: str) -> UUID:
        """An experiment, just taken in."""
        config = load_text(EXPERIMENT, "test.yaml", overrides=overrides, environ={}, cwd=self.folder).config
        return (await supervisor.submit(config, request_id=self._ids.new())).experiment

    async def fork(
        self,
        supervisor: Supervisor,
        experiment: UUID,
        at_step: int,
        *overrides: str,
        name: str | None = None,
        request_id: UUID | None = None,
    ) -> Forked:
        """A fork, just taken in."""
        return await supervisor.fork(
            experiment,
            at_step=at_step,
            overrides=overrides,
            name=name,
            labels={},
            request_id=request_id or self._ids.new(),
        )

    async def record(self, experiment: UUID) -> TrainingRecord:
        """The log's present record of the experiment."""
        return await read_record(self.log, experiment, clock=self._clock)

    async def state(self, experiment: UUID) -> RunState:
        """The folded state of its spine, weights and checkpoints, as the log has it now."""
        return (await self.record(experiment)).state

    async def ended(self, experiment: UUID, *, timeout_s: float = 60.0) -> RunState:
        """The state once it has ended."""
        return await self._once(experiment, lambda status: status.ended, timeout_s=timeout_s)

    async def paused(self, experiment: UUID, *, timeout_s: float = 60.0) -> RunState:
        """The state once it is paused."""
        return await self._once(experiment, lambda status: status is Status.PAUSED, timeout_s=timeout_s)

    async def _once(self, experiment: UUID, holds: Callable[[Status], bool], *, timeout_s: float) -> RunState:
        async with asyncio.timeout(timeout_s):
            while True:
                state = await self.state(experiment)
                if state.spine.status is not None and holds(state.spine.status):
                    return state
                await asyncio.sleep(0.05)

    async def completed(self, experiment: UUID) -> RunState:
        """The state of an experiment that has ended; AssertionError if it did not complete."""
        state = await self.ended(experiment)
        assert state.spine.status is Status.COMPLETED, (state.spine.status, state.spine.code, state.spine.reason)
        return state
