"""The table of staleness policies. Third parties add one through the entry-point group `rftd.policies`."""

from __future__ import annotations

from typing import Final

from rftd.ops.plugins import Plugins
from rftd.streams.spec import PolicySpec
from rftd.workers.control.policies.policy import StalenessPolicy

POLICIES: Final = Plugins[StalenessPolicy](
    "staleness policy",
    group="rftd.policies",
    table={
        "hard_bound": "rftd.workers.control.policies.hard_bound:HardBound",
        "in_order": "rftd.workers.control.policies.in_order:InOrder",
        "areal": "rftd.workers.control.policies.areal:Areal",
        "verl_window": "rftd.workers.control.policies.verl_window:VerlWindow",
        "windowed": "rftd.workers.control.policies.windowed:Windowed",
        "weight_fifo": "rftd.workers.control.policies.weight_fifo:WeightFifo",
        "ready_first": "rftd.workers.control.policies.ready_first:ReadyFirst",
        "sample_lag": "rftd.workers.control.policies.sample_lag:SampleLag",
    },
)

_MOST_MADE: Final = 64
_made: dict[int, tuple[PolicySpec, StalenessPolicy]] = {}
"""By the identity of the spec, which is kept so that no other has it."""


def keeps_bound(kind: str) -> bool:
    """True if nothing over the bound is trained under a kind of ours, as its class says; no third party's is asked."""
    return POLICIES.builtin(kind) and bool(POLICIES.load(kind).keeps_bound)


def make_policy(spec: PolicySpec) -> StalenessPolicy:
    """The policy that a stage names. Raises ConfigError for an unknown one."""
    return POLICIES.open(spec.kind, {"spec": spec})


def policy_of(spec: PolicySpec) -> StalenessPolicy:
    """The same one each time that it is asked for: a policy keeps nothing, so one serves all who decide."""
    known = _made.get(id(spec))
    if known is None or known[0] is not spec:
        if len(_made) >= _MOST_MADE:
            _made.clear()
        known = _made[id(spec)] = spec, make_policy(spec)
    return known[1]
