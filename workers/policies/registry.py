"""The table of staleness policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rftd.ops.errors import ConfigError
from rftd.streams.spec import PolicySpec
from rftd.workers.policies.hard_bound import HardBound
from rftd.workers.policies.in_order import InOrder
from rftd.workers.policies.policy import StalenessPolicy

POLICIES: Final[dict[str, Callable[[PolicySpec], StalenessPolicy]]] = {
    "hard_bound": HardBound,
    "in_order": InOrder,
}


def make_policy(spec: PolicySpec) -> StalenessPolicy:
    """The policy that a stage names. Raises ConfigError for an unknown one."""
    if spec.kind not in POLICIES:
        raise ConfigError(f"no staleness policy {spec.kind!r}", fix=f"one of {', '.join(sorted(POLICIES))}")
    return POLICIES[spec.kind](spec)
