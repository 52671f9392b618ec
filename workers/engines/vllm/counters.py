"""`EngineCounters`: numbers of running requests and drawn tokens, from vLLM's own statistics."""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase


class EngineCounters(StatLoggerBase):  # type: ignore[misc]
    """Records vLLM's statistics of each step; vLLM's responses come only when final, and show no progress."""

    def __init__(self) -> None:
        """Begins all counters at zero."""
        self.running = 0
        """Number of requests with a slot in the last step. No step follows the end of the last request."""
        self.tokens_total = 0
        """Number of tokens drawn."""
        self.progress = 0
        """Counter of steps that advanced any request. vLLM also makes steps without progress, while all requests wait.
        """
        self._scheduled: tuple[float, ...] = ()

    def __call__(self, vllm_config: Any, engine_index: int = 0) -> EngineCounters:
        """Returns itself: vLLM makes its loggers by calling the given factory."""
        return self

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """Records the statistics of one step; either may be missing."""
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs
            # A part of a prompt draws no token, but fills a part of the cache.
            scheduled = (self.running, scheduler_stats.num_waiting_reqs, scheduler_stats.kv_cache_usage)
            self.progress += scheduled != self._scheduled
            self._scheduled = scheduled
        if iteration_stats is not None:
            self.tokens_total += iteration_stats.num_generation_tokens
            self.progress += iteration_stats.num_generation_tokens

    def log_engine_initialized(self) -> None:
        """Logs nothing: required by vLLM's interface of loggers."""
