# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""The learning signal of an experiment: lost or not, with the figures of its newest step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.counting import EXECUTED
from rftd.storage.queries.rows import fetch_one

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

_GRADIENT: Final = "actor/grad_norm"
"""Name of the step's metric with the gradient norm."""


class SignalRow(msgspec.Struct, frozen=True, kw_only=True):
    """Learning signal of the newest batches. A share or norm is null where the step does not record it."""

    cause: str | None
    """The cause for which nothing is learnt; null while there is a learning signal."""
    reason: str | None
    """The cause in words, with a fix."""
    since_step: int | None
    """The first step of a batch without a learning signal."""
    since_ns: int | None
    """Time of the loss of the signal, Unix time in nanoseconds."""
    step: int | None
    """The newest trained step, to which the following figures belong."""
    tokens: int | None
    """Number of tokens with a gradient."""
    gradient_norm: float | None
    """Norm of the gradient in the step."""
    equal_groups: float | None
    """Share of groups with equal rewards for all members."""
    prompts_cut: float | None
    """Share of rollouts with a truncated prompt."""
    answers_cut: float | None
    """Share of rollouts with an answer ended at its length limit."""
    answers_empty: float | None
    """Share of rollouts ended by the model with at most one token, the end token."""


class _Lost(msgspec.Struct, frozen=True):
    """A row with the lost learning signal of an experiment; all None without a loss."""

    cause: str | None
    """Name of the cause; None while there is a learning signal."""
    reason: str | None
    """The cause in words, with a fix."""
    since_step: int | None
    """First step of a batch without a learning signal."""
    since_ns: int | None
    """Time of the loss, Unix time in nanoseconds."""


class _Step(msgspec.Struct, frozen=True):
    """A row with the newest executed step of an experiment."""

    step: int
    """Weight version made by the step."""
    tokens: int
    """Number of tokens with a gradient."""
    metrics: dict[str, float | None]
    """Metrics of the step by name; None for a recorded NaN or infinity."""


async def signal_of(connection: AsyncConnection, experiment: UUID) -> SignalRow:
    """Returns the signal as of the newest step of the newest generation."""
    # Late: the command line reads these rows too, and needs no event types.
    from rftd.streams.events.step import ANSWERS_CUT, ANSWERS_EMPTY, EQUAL_GROUPS, PROMPTS_CUT

    lost = await fetch_one(
        connection,
        _Lost,
        """SELECT NULLIF(signal_cause, '') AS cause, NULLIF(signal_reason, '') AS reason, signal_step AS since_step,
            signal_ns AS since_ns
        FROM experiments WHERE id = :experiment""",
        experiment=experiment.bytes,
    )
    step = await fetch_one(
        connection,
        _Step,
        f"""SELECT t.step, t.tokens, t.metrics FROM {EXECUTED} t WHERE t.experiment = :experiment
        ORDER BY t.step DESC, t.generation DESC LIMIT 1""",
        experiment=experiment.bytes,
    )
    lost_signal = lost if lost is not None and lost.cause is not None else _Lost(None, None, None, None)
    figures = step.metrics if step is not None else {}
    return SignalRow(
        cause=lost_signal.cause,
        reason=lost_signal.reason,
        since_step=lost_signal.since_step,
        since_ns=lost_signal.since_ns,
        step=step.step if step is not None else None,
        tokens=step.tokens if step is not None else None,
        gradient_norm=figures.get(_GRADIENT),
        equal_groups=figures.get(EQUAL_GROUPS),
        prompts_cut=figures.get(PROMPTS_CUT),
        answers_cut=figures.get(ANSWERS_CUT),
        answers_empty=figures.get(ANSWERS_EMPTY),
    )
