"""Section `limits` of the experiment file: the spending of an experiment before it pauses for a person."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from rftd.streams.spec.declaration import InUnit

Hours: TypeAlias = Annotated[float, Meta(ge=0, le=1e9), InUnit("h")]
Money: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """`limits`: rftd only: the experiment pauses when a budget is spent; 0 = no limit."""

    hours: Hours = 0.0
    """Running time, without time in the queue, pauses, and time without a daemon."""
    tokens: Annotated[int, Meta(ge=0, le=10**18), InUnit("tokens")] = 0
    """Tokens of finished rollouts, prompts and answers; in stages without rollouts, trained tokens."""
    accelerator_hours: Hours = 0.0
    """Hours times GPUs of its workers; a worker without a GPU counts as one."""
    cost: Money = 0.0
    """Accelerator hours and tokens at the two prices below, in any currency."""
    accelerator_hour_price: Money = 0.0
    """Price of an hour of one accelerator."""
    million_tokens_price: Money = 0.0
    """Price of a million tokens."""
    unseen_days: Annotated[float, Meta(ge=0, le=10**5), InUnit("d")] = 0.0
    """Also pause after this time without a view by a person."""
