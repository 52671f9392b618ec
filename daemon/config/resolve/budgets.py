"""`check_budgets` refuses limits that would never be reached, or that mean nothing."""

from __future__ import annotations

from collections.abc import Iterator

from rftd.daemon.config.issue import Issue
from rftd.streams.budgets import Budgets


def check_budgets(limits: Budgets) -> Iterator[Issue]:
    """The errors of section `limits`."""
    prices = ("accelerator_hour_price", "million_tokens_price")
    written = [name for name in prices if getattr(limits, name)]
    if limits.cost and not written:
        fix = "add limits.accelerator_hour_price, limits.million_tokens_price, or both"
        yield Issue(("limits", "cost"), f"is {limits.cost:g}, and nothing has a price", fix)
    if written and not limits.cost:
        yield Issue(
            ("limits", written[0]), "is a price, and there is no limits.cost", "add limits.cost, or leave it out"
        )
