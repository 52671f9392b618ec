"""Section `policy` and the replay buffer, as they will act."""

from __future__ import annotations

from typing import Any

import msgspec

from rftd.daemon.config.effective.arguments import with_defaults
from rftd.daemon.config.schema.policy import fields_of
from rftd.streams.spec import PolicySpec, StageSpec
from rftd.workers.control.policies.priorities import PRIORITIES
from rftd.workers.control.policies.registry import built_in, keeps_bound


def policy_section(stage: StageSpec) -> dict[str, Any] | None:
    """The policy with its arguments; None where naming one would change it."""
    spec = stage.policy
    policy = built_in(spec.kind)
    # A server's clients are given time: naming the policy, as a file may, would take it from them.
    if stage.serving is not None and spec.max_uses == 1 and keeps_bound(spec.kind) and not spec.bounded:
        return None
    section: dict[str, Any] = {"kind": spec.kind} if policy is not None else {"kind": "plugin", "name": spec.kind}
    # What is used more than once is bounded only where a file asks for that.
    if spec.bounded or not keeps_bound(spec.kind):
        section["max_staleness"] = spec.max_staleness_versions
    section["min_group_members"] = spec.min_group_members
    if policy is None:
        return {**section, "args": spec.args}
    for field in fields_of(policy):
        value = spec.args.get(field.name, field.default)
        if value is not msgspec.NODEFAULT:
            section[field.name] = msgspec.to_builtins(value)
    return section


def replay_buffer(spec: PolicySpec) -> dict[str, Any]:
    """The order and the reuse of experiences."""
    if not spec.evict_when_full:
        return {"enable": False}
    return {
        "enable": True,
        "priority_fn": spec.priority.kind,
        "priority_fn_args": with_defaults(PRIORITIES, spec.priority.kind, spec.priority.args),
        "reuse_cooldown_time": None if spec.max_uses == 1 and not spec.cooldown_s else spec.cooldown_s,
    }
