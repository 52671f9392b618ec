"""The table of staleness policies. Third parties add one through the entry-point group `rftd.policies`."""

from __future__ import annotations

from typing import Final, cast

from rftd.ops.plugins import Plugins
from rftd.streams.spec.spec import PolicySpec
from rftd.workers.control.policies.paced import Paced
from rftd.workers.control.policies.policy import StalenessPolicy

_HERE: Final = "rftd.workers.control.policies"

BUILT_IN: Final = {
    "hard_bound": f"{_HERE}.bounded:HardBound",
    "in_order": f"{_HERE}.bounded:InOrder",
    "areal": f"{_HERE}.admission:Areal",
    "verl_window": f"{_HERE}.admission:VerlWindow",
    "windowed": f"{_HERE}.bounded:Windowed",
    "weight_fifo": f"{_HERE}.bounded:WeightFifo",
    "ready_first": f"{_HERE}.admission:ReadyFirst",
    "sample_lag": f"{_HERE}.admission:SampleLag",
}
"""Our policies by kind. Adding one is its class and a line here: configuration, checks and tables follow from it."""

POLICIES: Final = Plugins[StalenessPolicy]("staleness policy", group="rftd.policies", table=BUILT_IN)

_MOST_MADE: Final = 64
_made: dict[int, tuple[PolicySpec, StalenessPolicy]] = {}
"""Policies by the identity of their spec."""


def built_in(kind: str) -> type[Paced] | None:
    """The class of a kind of ours; None for a third party's, which is not imported by those who only check."""
    return cast("type[Paced]", POLICIES.load(kind)) if kind in BUILT_IN else None


def keeps_bound(kind: str) -> bool:
    """True if nothing over the bound is trained under a kind of ours, as its class says."""
    policy = built_in(kind)
    return policy is not None and policy.keeps_bound


def make_policy(spec: PolicySpec) -> StalenessPolicy:
    """The policy that a stage names. Raises ConfigError for an unknown one."""
    return POLICIES.open(spec.kind, {"spec": spec})


def policy_of(spec: PolicySpec) -> StalenessPolicy:
    """The policy of a spec, made once: a policy keeps nothing, so one serves all who decide."""
    # By identity, for a spec holds a mapping and has no hash. It is kept beside its policy: an id is used again
    # once its object is gone.
    known = _made.get(id(spec))
    if known is None or known[0] is not spec:
        if len(_made) >= _MOST_MADE:
            # All at once: few specs are in use at a time, and a policy is made again in no time.
            _made.clear()
        known = _made[id(spec)] = spec, make_policy(spec)
    return known[1]
