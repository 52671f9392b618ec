"""`StepLog`: one line for each step in the trainer's log, enough to read a run without anything else."""

from __future__ import annotations

import math

import msgspec

from rftd.ops.clock import Clock
from rftd.ops.logs import Logger
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.step import StepCompleted
from rftd.streams.figures.step_figures import (
    critic_loss_of,
    grad_norm_of,
    kl_of,
    loss_of,
    response_length_of,
    reward_of,
    staleness_of,
)


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """Weights announced to explorers, with channel, size and duration."""

    version: int
    """Weight version announced."""
    method: str
    """Name of the channel."""
    size_bytes: int
    """Size of the tensors."""
    duration_s: float
    """Seconds from the finished copy of the weights to the event."""


class StepLog:
    """Writes one log line per step, naming the newest publication, and further lines for checkpoints and other
    publications.
    """

    def __init__(self, log: Logger, clock: Clock) -> None:
        """Writes to `log`; `clock` measures the intervals between steps."""
        self._log = log
        self._clock = clock
        self._last_end_s: float | None = None
        """Time at which the last step was logged; None before the first."""
        self._published_version = -1
        """Weight version named by the last line."""

    def step(self, done: StepCompleted, stage: str, published: Publication | None) -> None:
        """Logs a step, with the newest weights available to explorers by the end of the step.

        The publication is in the step's line: with a publication after each step, separate lines would be half of the
        log.
        """
        now_s = self._clock.monotonic_s()
        figures = {
            "reward": reward_of(done.metrics),
            "loss": loss_of(done.metrics),
            "critic_loss": critic_loss_of(done.metrics),
            "kl": kl_of(done.metrics),
            "grad_norm": grad_norm_of(done.metrics),
            "response_length": response_length_of(done.metrics),
            "staleness": staleness_of(done.metrics),
            "tokens": done.tokens,
            "tokens_per_s": done.tokens / done.duration_s if done.duration_s > 0 else None,
            "duration_s": done.duration_s,
            # From the end of the step before: with the waits for batch, publication and checkpoint.
            "interval_s": None if self._last_end_s is None else now_s - self._last_end_s,
            "publish_s": published.duration_s if published is not None else None,
        }
        self._last_end_s = now_s
        fields = {name: _rounded(figure) for name, figure in figures.items() if figure is not None}
        if published is not None:
            fields["published"] = self._published_version = published.version
        if done.skipped:
            self._log.warning(
                "step.skipped", step=done.step, stage=stage, batch=str(done.batch), reason=done.skipped, **fields
            )
        else:
            self._log.info("step.completed", step=done.step, stage=stage, **fields)

    def published(self, newest: Publication | None) -> None:
        """Logs a publication, unless a line has already named its version."""
        if newest is not None and newest.version != self._published_version:
            self._published_version = newest.version
            self._log.info(
                "weights.published",
                version=newest.version,
                method=newest.method,
                size_bytes=newest.size_bytes,
                publish_s=_rounded(newest.duration_s),
            )

    def checkpoint(self, saved: CheckpointCommitted, duration_s: float) -> None:
        """Logs a committed checkpoint, with size in bytes and seconds for saving."""
        self._log.info(
            "checkpoint.committed",
            step=saved.step,
            path=saved.path,
            size_bytes=saved.size_bytes,
            save_s=_rounded(duration_s),
        )


def _rounded(figure: float) -> float | str:
    """Returns the figure with four significant digits; a non-finite one as a word: JSON has no number for it."""
    if not math.isfinite(figure):
        return str(figure)
    return figure if isinstance(figure, int) else float(f"{figure:.4g}")
