"""The pause of an experiment that has spent a budget, or at which nobody has looked for too long. Pure.

The fold says what is spent (`streams/folds/spending.py`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rftd.streams.explorer_devices import accelerators_of
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spending import BUDGET, UNSEEN
from rftd.streams.folds.spine import Status
from rftd.workers.control.obstacle import Obstacle

_HOUR_NS: Final = 3_600 * 10**9
_DAY_NS: Final = 24 * _HOUR_NS
LOOKS_IN_TIME: Final = 24
"""A look is written if the last one is older than this part of `unseen_days`, or than an hour."""


class BudgetUse(NamedTuple):
    """One budget, and what is spent of it."""

    field: str
    """Its field in `limits`."""
    limit: float
    """With what resumes granted; 0: no limit."""
    spent: float
    unit: str

    @property
    def words(self) -> str:
        """What is spent, as a person reads it."""
        return f"{_short(self.spent)} of {_short(self.limit)}{self.unit}"


def budget_pause(state: RunState, now_ns: int) -> Obstacle | None:
    """The pause that a spent budget, or nobody's looking, demands at this time; None if none does."""
    for budget in budget_uses(state, now_ns):
        if 0 < budget.limit <= budget.spent:
            return Obstacle(
                cause=BUDGET,
                reason=f"limits.{budget.field}: {budget.words} spent",
                fix="grant as much once more: rftd resume; or end it: rftd cancel",
            )
    spine = state.spine
    if spine.spec is None or not spine.spec.limits.unseen_days:
        return None
    unseen_ns = now_ns - spine.spending.seen_ns
    if unseen_ns < spine.spec.limits.unseen_days * _DAY_NS:
        return None
    return Obstacle(
        cause=UNSEEN,
        reason=f"limits.unseen_days: nobody has looked at it for {_short(unseen_ns / _DAY_NS)} days",
        fix="look at it: rftd get; and go on: rftd resume",
    )


def budget_uses(state: RunState, now_ns: int) -> tuple[BudgetUse, ...]:
    """What is spent at this time, budget by budget; without a specification nothing."""
    spine = state.spine
    if spine.spec is None:
        return ()
    limits = spine.spec.limits
    granted = spine.spending.granted
    hours = spine.spending.ran_until_ns(now_ns) / _HOUR_NS
    accelerator_hours = hours * accelerators_of(spine.spec)
    tokens = state.groups.tokens + spine.spending.row_tokens
    cost = accelerator_hours * limits.accelerator_hour_price + tokens / 1e6 * limits.million_tokens_price
    return (
        BudgetUse("hours", limits.hours * granted, hours, " hours"),
        BudgetUse("tokens", limits.tokens * granted, tokens, " tokens"),
        BudgetUse("accelerator_hours", limits.accelerator_hours * granted, accelerator_hours, " accelerator hours"),
        BudgetUse("cost", limits.cost * granted, cost, ""),
    )


def look_is_due(state: RunState, now_ns: int) -> bool:
    """True if a look at the experiment is to be written: the last one that is was long ago."""
    spine = state.spine
    if spine.spec is None or spine.status is not Status.RUNNING or not spine.spec.limits.unseen_days:
        return False
    unseen_ns = now_ns - spine.spending.seen_ns
    return unseen_ns >= min(_HOUR_NS, spine.spec.limits.unseen_days * _DAY_NS / LOOKS_IN_TIME)


def _short(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 1000 or amount == int(amount) else f"{amount:.3g}"
