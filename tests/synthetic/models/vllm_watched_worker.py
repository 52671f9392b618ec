"""A worker of vLLM's that notes when each of its decode steps began and ended, and what is copied between two."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from vllm.model_executor.model_loader.reload.meta import CopyCounter

from rftd.workers.engines.vllm.worker import RolloutWorker


class WatchedWorker(RolloutWorker):
    """What an engine's worker is extended by in place of `RolloutWorker`."""

    rollout_steps: list[tuple[float, float]]
    rollout_copied: int
    rollout_unprepared: int
    rollout_opened: int

    def prepare_rollouts(self, folder: str) -> int:
        """Begins to note, besides."""
        runner = self.model_runner
        self.rollout_copied = 0
        self.rollout_unprepared = 0
        steps = self.rollout_steps = []
        began_s = 0.0

        def begins(execute: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(execute)
            def executed(*given: Any, **more: Any) -> Any:
                nonlocal began_s
                began_s = time.monotonic()
                return execute(*given, **more)

            return executed

        def ends(sample: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(sample)
            def sampled(*given: Any, **more: Any) -> Any:
                drawn = sample(*given, **more)
                steps.append((began_s, time.monotonic()))
                return drawn

            return sampled

        runner.execute_model = begins(runner.execute_model)
        runner.sample_tokens = ends(runner.sample_tokens)
        pid = super().prepare_rollouts(folder)
        self.rollout_opened = 0
        whole = self.rollout_weights._merge_adapter

        def opened(*given: Any) -> Any:
            self.rollout_opened += 1
            return whole(*given)

        self.rollout_weights._merge_adapter = opened  # type: ignore[method-assign]
        return pid

    def swap_rollout_weights(self) -> dict[str, Any]:
        """Counts the numbers that are copied, and the weights that were not prepared, besides."""
        self.rollout_unprepared += self.rollout_weights.prepared is None
        with CopyCounter() as counter:
            marks = super().swap_rollout_weights()
        self.rollout_copied += counter.copied_numel
        return marks

    def rollout_copies(self) -> tuple[int, int]:
        """How many numbers all swaps copied while nothing was drawn, and how many of them found nothing prepared."""
        return self.rollout_copied, self.rollout_unprepared

    def rollout_share(self) -> tuple[int, int]:
        """The number of attention heads that this process computes, and how often it opened weights."""
        runner = self.model_runner
        return runner.model_config.get_num_attention_heads(runner.parallel_config), self.rollout_opened

    def rollout_step_times(self) -> list[tuple[float, float]]:
        """When each step since the last call began and ended, by the machine's monotonic clock."""
        steps = list(self.rollout_steps)
        self.rollout_steps.clear()
        return steps
