"""Pauses for spent budgets, and for experiments that no person has read for too long (`limits.unseen_days`). Pure.

The fold counts the spending (`streams/folds/spending.py`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spending import BUDGET, UNSEEN, Spending
from rftd.streams.folds.spine import Status
from rftd.streams.spec.explorer_devices import accelerators_of
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.control.hold import Obstacle

_HOUR_NS: Final = 3_600 * 10**9
"""Nanoseconds of an hour."""
_DAY_NS: Final = 24 * _HOUR_NS
"""Nanoseconds of a day."""
READER_RECORD_SHARE: Final = 24
"""Fraction of `unseen_days` (at most an hour) after which a further reader is recorded."""


class Spent(NamedTuple):
    """Amounts spent by an experiment, with the specification containing its budgets."""

    spec: ExperimentSpec
    """Specification of the experiment."""
    spending: Spending
    """Tokens, time and other amounts, folded from the log."""
    tokens: int | None
    """Tokens generated; None while the experiment does not run, when only the tables count tokens."""


class BudgetUse(NamedTuple):
    """One budget of an experiment, with the amount spent."""

    field: str
    """Name of the field in `limits`."""
    limit: float
    """The limit including additions by resumes; 0: no limit."""
    spent: float
    """Amount spent so far."""
    unit: str
    """Unit of the amounts, as written behind them."""
    pauses_ns: int | None = None
    """Time at which the budget will pause the experiment if it keeps running; None if time alone does not decide."""

    @property
    def words(self) -> str:
        """The spending as text, such as the amount, the limit and the unit."""
        return f"{_short(self.spent)} of {_short(self.limit)}{self.unit}"


def budget_pause(state: RunState, now_ns: int) -> Obstacle | None:
    """Returns the pause due at `now_ns` for a spent budget, or for `unseen_days` without a reader; None if neither
    applies.
    """
    spending = spent_of(state)
    if spending is None:
        return None
    for budget in budget_uses(spending, now_ns):
        if 0 < budget.limit <= budget.spent:
            return Obstacle(
                cause=BUDGET,
                reason=f"limits.{budget.field}: {budget.words} spent",
                fix="grant the same amount again: rftd resume; or end it: rftd cancel",
            )
    unseen = unseen_use(spending, now_ns)
    if not 0 < unseen.limit <= unseen.spent:
        return None
    return Obstacle(
        cause=UNSEEN,
        reason=f"limits.unseen_days: not viewed for {_short(unseen.spent)} days",
        fix="look at it with rftd get, then continue: rftd resume",
    )


def spent_of(state: RunState) -> Spent | None:
    """Returns the spending of a running experiment from its fold; None before its specification was read."""
    spine = state.spine
    if spine.spec is None:
        return None
    return Spent(spine.spec, spine.spending, state.groups.tokens + spine.spending.row_tokens)


def budget_uses(spent: Spent, now_ns: int) -> tuple[BudgetUse, ...]:
    """Returns the use of each budget at this time."""
    limits = spent.spec.limits
    spending = spent.spending
    accelerators = accelerators_of(spent.spec)
    hours = spending.ran_until_ns(now_ns) / _HOUR_NS
    accelerator_hours = hours * accelerators
    tokens = spent.tokens or 0
    cost = accelerator_hours * limits.accelerator_hour_price + tokens / 1e6 * limits.million_tokens_price

    def timed(field: str, once: float | None, used: float, unit: str, rate: int) -> BudgetUse:
        limit = (once or 0.0) * spending.granted
        remaining_ns = round(max(0.0, limit - used) / rate * _HOUR_NS)
        return BudgetUse(field, limit, used, unit, now_ns + remaining_ns if limit and spending.running else None)

    return (
        timed("hours", limits.hours, hours, " hours", 1),
        BudgetUse("tokens", (limits.tokens or 0) * spending.granted, tokens, " tokens"),
        timed("accelerator_hours", limits.accelerator_hours, accelerator_hours, " accelerator hours", accelerators),
        BudgetUse("cost", (limits.cost or 0.0) * spending.granted, cost, ""),
    )


def unseen_use(spent: Spent, now_ns: int) -> BudgetUse:
    """Returns the days since a person last read about the experiment, as a use of the budget `unseen_days`."""
    days = spent.spec.limits.unseen_days or 0.0
    seen_ns = spent.spending.seen_ns
    pauses_ns = seen_ns + round(days * _DAY_NS) if days and spent.spending.running else None
    return BudgetUse("unseen_days", days, (now_ns - seen_ns) / _DAY_NS, " days without a look", pauses_ns)


def reader_record_is_due(state: RunState, now_ns: int) -> bool:
    """True if a reader at `now_ns` has to be recorded, because the last recorded reader is too long ago."""
    spine = state.spine
    if spine.spec is None or spine.status is not Status.RUNNING or not spine.spec.limits.unseen_days:
        return False
    unseen_ns = now_ns - spine.spending.seen_ns
    return unseen_ns >= min(_HOUR_NS, spine.spec.limits.unseen_days * _DAY_NS / READER_RECORD_SHARE)


def _short(amount: float) -> str:
    """Returns an amount with at most three significant digits, or whole with separators from 1,000 on."""
    return f"{amount:,.0f}" if amount >= 1000 or amount == int(amount) else f"{amount:.3g}"
