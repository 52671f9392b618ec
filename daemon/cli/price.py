"""`Price`: the cost of one accelerator per hour, as given to `rftd serve --price`."""

from __future__ import annotations

import math
from typing import Any, Final

import click

KINDS: Final = ("gpu", "cpu")
"""Kinds of accelerators: a worker holds GPUs, or counts as one of kind `cpu`."""


class Price(click.ParamType[tuple[str, float]]):
    """A click type: KIND=USD, the price of an accelerator kind per hour."""

    name = "price"
    """Name of the type in usage errors."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """Returns kind and dollars per hour; fails for an unknown kind or a negative price."""
        if isinstance(value, tuple):
            return value
        kind, _, amount = str(value).partition("=")
        try:
            usd = float(amount)
        except ValueError:
            usd = math.nan
        if kind not in KINDS or not 0 <= usd < math.inf:
            self.fail(f"{value!r} is no price: write gpu=2.50, dollars for an hour of one", param, ctx)
        return kind, usd
