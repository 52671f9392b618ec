"""Checks of the arguments of policy losses; each raises a ConfigError naming the field."""

from __future__ import annotations

from collections.abc import Collection

from rftd.ops.errors import ConfigError
from rftd.workers.learning.losses import aggregation


def at_least(least: float, **values: float | None) -> None:
    """Raises ConfigError for a value below `least` or NaN; None is accepted."""
    for name, value in values.items():
        # `not value >= least`, so that NaN is refused as well: every comparison with it is False.
        if value is not None and not value >= least:
            raise ConfigError(f"{name} is {value}", field=f"policy_loss_fn_args.{name}", fix=f"use {least:g} or more")


def above(bound: float, **values: float | None) -> None:
    """Raises ConfigError for a value at or below `bound`, or NaN; None is accepted."""
    for name, value in values.items():
        if value is not None and not value > bound:
            raise ConfigError(f"{name} is {value}", field=f"policy_loss_fn_args.{name}", fix=f"use one above {bound:g}")


def share(**values: float) -> None:
    """Raises ConfigError for a value outside [0, 1]."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{name} is {value}", field=f"policy_loss_fn_args.{name}", fix="use one of 0 to 1")


def one_of(known: Collection[str], **values: str) -> None:
    """Raises ConfigError for a word missing from `known`."""
    for name, value in values.items():
        if value not in known:
            raise ConfigError(
                f"{name} is {value!r}", field=f"policy_loss_fn_args.{name}", fix=f"one of {', '.join(known)}"
            )


def mode(loss_agg_mode: str | None) -> None:
    """Raises ConfigError for an unknown aggregation; None is accepted."""
    if loss_agg_mode is not None:
        aggregation.check(loss_agg_mode)
