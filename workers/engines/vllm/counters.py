"""`EngineCounters`: numbers of running requests and drawn tokens, from vLLM's own statistics."""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase


class EngineCounters(StatLoggerBase):  # type: ignore[misc]
    """Takes in what vLLM counts at each step; responses are final ones only, and tell nothing on the way."""

    def __init__(self) -> None:
        self.running = 0
        """Requests that had a slot in the last step. No step comes once the last of them has left."""
        self.tokens_total = 0
        self.progress = 0
        """It grows with each step that brought any request on. Steps that did not are made, too, while all wait."""
        self._scheduled: tuple[float, ...] = ()

    def __call__(self, vllm_config: Any, engine_index: int = 0) -> EngineCounters:
        """Itself: vLLM makes its loggers by calling what it is given."""
        return self

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """The statistics of one step; either may be missing."""
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs
            # A part of a prompt draws no token, and fills a part of the cache.
            scheduled = (self.running, scheduler_stats.num_waiting_reqs, scheduler_stats.kv_cache_usage)
            self.progress += scheduled != self._scheduled
            self._scheduled = scheduled
        if iteration_stats is not None:
            self.tokens_total += iteration_stats.num_generation_tokens
            self.progress += iteration_stats.num_generation_tokens

    def log_engine_initialized(self) -> None:
        """Nothing to say."""
