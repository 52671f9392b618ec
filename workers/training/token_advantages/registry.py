"""The token advantage that an algorithm names, if what it names tells tokens apart."""

from __future__ import annotations

from rftd.streams.spec import AlgorithmSpec
from rftd.workers.algorithms.advantages.registry import advantage_function
from rftd.workers.training.token_advantages.token_advantage import TokenAdvantage


def token_advantage(spec: AlgorithmSpec) -> TokenAdvantage | None:
    """The algorithm's advantage function, if it tells tokens apart: it is asked again with the whole batch. Else None.

    Raises ConfigError for an unknown name or arguments that do not fit.
    """
    function = advantage_function(spec)
    return function if isinstance(function, TokenAdvantage) else None
