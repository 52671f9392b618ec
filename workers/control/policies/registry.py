"""The table of staleness policies. Third parties add one through the entry-point group `rftd.policies`."""

from __future__ import annotations

from typing import Final, cast

from rftd.ops.plugins import Plugins
from rftd.streams.spec.spec import PolicySpec
from rftd.workers.control.policies.paced import Paced
from rftd.workers.control.policies.policy import StalenessPolicy

_PACKAGE: Final = "rftd.workers.control.policies"
"""Package of the modules named in the table."""

BUILT_IN: Final = {
    "hard_bound": f"{_PACKAGE}.bounded:HardBound",
    "in_order": f"{_PACKAGE}.bounded:InOrder",
    "areal": f"{_PACKAGE}.admission:Areal",
    "verl_window": f"{_PACKAGE}.admission:VerlWindow",
    "windowed": f"{_PACKAGE}.bounded:Windowed",
    "weight_fifo": f"{_PACKAGE}.bounded:WeightFifo",
    "ready_first": f"{_PACKAGE}.admission:ReadyFirst",
    "sample_lag": f"{_PACKAGE}.admission:SampleLag",
}
"""Built-in policies by kind. Adding one takes its class and a line here: configuration, checks and tables follow."""

POLICIES: Final = Plugins[StalenessPolicy]("staleness policy", group="rftd.policies", table=BUILT_IN)
"""Policies by kind: built-in ones, and plug-ins of the entry-point group `rftd.policies`."""

_MAX_OPEN_POLICIES: Final = 64
"""Maximum number of policies in the cache of `policy_of`."""
_open_policies: dict[int, tuple[PolicySpec, StalenessPolicy]] = {}
"""Policies by the identity of their spec."""


def built_in(kind: str) -> type[Paced] | None:
    """Returns the class of a built-in kind; None for a third party's, because checks must not import it."""
    return cast("type[Paced]", POLICIES.load(kind)) if kind in BUILT_IN else None


def keeps_bound(kind: str) -> bool:
    """True if a built-in kind guarantees that no experience above `max_staleness` is trained."""
    policy = built_in(kind)
    return policy is not None and policy.keeps_bound


def make_policy(spec: PolicySpec) -> StalenessPolicy:
    """Returns the policy named by a stage. Raises ConfigError for an unknown one."""
    return POLICIES.open(spec.kind, {"spec": spec})


def policy_of(spec: PolicySpec) -> StalenessPolicy:
    """Returns the policy of a specification from a cache: policies have no state, so one instance serves
    every decider.
    """
    # By identity, because a spec holds a mapping and has no hash. The spec is stored beside its policy: an id is used
    # again once its object is freed.
    opened = _open_policies.get(id(spec))
    if opened is None or opened[0] is not spec:
        if len(_open_policies) >= _MAX_OPEN_POLICIES:
            # All at once: few specs are in use at a time, and making a policy again is quick.
            _open_policies.clear()
        opened = _open_policies[id(spec)] = spec, make_policy(spec)
    return opened[1]
