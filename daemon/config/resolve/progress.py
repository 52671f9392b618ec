"""Whether a policy ever lets in what the next weights are made of: else the experiment would stand still for ever."""

from __future__ import annotations

from rftd.ops.errors import ConfigError
from rftd.streams.spec import PolicySpec
from rftd.workers.control.policies.policy import PolicyView
from rftd.workers.control.policies.registry import POLICIES, make_policy

_ENOUGH_STEPS = 64
"""Between two publications; what goes on so long goes on."""


def standstill(spec: PolicySpec, *, interval: int, batch: int, repeat_times: int) -> str | None:
    """Why no step could be made any more, if so: weights are published every `interval` steps, none before.

    A third party's policy is not imported here, and not asked.
    """
    if not POLICIES.builtin(spec.kind):
        return None
    try:
        policy = make_policy(spec)
    except ConfigError as error:
        return error.what
    for step in range(min(interval, _ENOUGH_STEPS)):
        waiting = 0
        while waiting < batch:
            view = PolicyView(
                version=step,
                first_version=0,
                published_version=0,
                total_steps=10**9,
                planned_steps=step,
                batch_size=batch,
                repeat_times=repeat_times,
                planned_experiences=step * batch,
                waiting_experiences=waiting,
                inflight_rollouts=0,
            )
            if not (admitted := policy.admit(view) * repeat_times):
                return (
                    f"policy {spec.kind} lets in {waiting} of the {batch} experiences of step {step + 1}, and weights "
                    f"are published after step {interval}"
                )
            waiting += admitted
    return None
