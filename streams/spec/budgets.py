"""Section `limits` of the experiment file: what an experiment may spend before it pauses for a person."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from rftd.streams.spec.declaration import InUnit

Hours: TypeAlias = Annotated[float, Meta(ge=0, le=1e9), InUnit("h")]
Money: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """`limits`: rftd only: the experiment pauses when it has spent one of them; 0 = no limit."""

    hours: Hours = 0.0
    """The time that it runs, without its turns in the queue, its pauses, and the time when no daemon drove it."""
    tokens: Annotated[int, Meta(ge=0, le=10**18), InUnit("tokens")] = 0
    """The tokens of its finished rollouts, prompts and answers; and those that it trains on in stages without any."""
    accelerator_hours: Hours = 0.0
    """The hours times the GPUs that its workers hold; a worker without one counts as one."""
    cost: Money = 0.0
    """Accelerator hours and tokens at the two prices below, in any currency."""
    accelerator_hour_price: Money = 0.0
    """The price of an hour of one accelerator."""
    million_tokens_price: Money = 0.0
    """The price of a million tokens."""
    unseen_days: Annotated[float, Meta(ge=0, le=10**5), InUnit("d")] = 0.0
    """It pauses, too, when nobody has looked at it for so long."""
