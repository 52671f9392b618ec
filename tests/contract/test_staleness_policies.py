"""What every staleness policy promises, ours and a third party's: pure answers, a bound that holds, and progress."""

from __future__ import annotations

import random
from typing import Any

import pytest
from synthetic.worlds.policy_world import PolicyWorld, Sizes

from rftd.daemon.config.resolve.policy import standstill
from rftd.streams.spec.spec import PolicySpec, PrioritySpec
from rftd.workers.control.policies.registry import POLICIES, keeps_bound, make_policy

WORLDS = range(30)


def drawn(kind: str, seed: int) -> tuple[PolicySpec, Sizes]:
    """What the experiment file lets a user ask for, and the resolver accepts."""
    chance = random.Random(f"{kind} {seed}")
    groups, repeat_times, interval = chance.randint(1, 3), chance.randint(1, 4), chance.choice([1, 1, 2, 3])
    batch = groups * repeat_times
    max_uses = chance.choice([1, 1, 2, 3, 0])
    own: dict[str, Any] = {
        "areal": {"max_concurrent": chance.choice([0, repeat_times, 3 * batch])},
        "verl_window": {
            "staleness_threshold": chance.choice([0.0, 0.5, 1.0]),
            "trigger_parameter_sync_step": interval,
        },
        "windowed": {"freshest_first": chance.random() < 0.5, "abort_inflight": chance.random() < 0.5},
        "sample_lag": {"max_lag_samples": chance.choice([0, 1, 2 * batch])},
        **{each: {"wait": chance.random() < 0.3} for each in ("hard_bound", "weight_fifo")},
    }
    own["in_order"] = {"abort_inflight": chance.random() < 0.5}
    for each in ("hard_bound", "weight_fifo"):
        own[each]["abort_inflight"] = chance.random() < 0.5
    replays = max_uses != 1 or chance.random() < 0.3
    spec = PolicySpec(
        kind=kind,
        max_staleness_versions=interval - 1 + chance.randint(0, 3),
        bounded=keeps_bound(kind) and (max_uses == 1 or chance.random() < 0.5),
        max_inflight_batches=chance.randint(1, 3),
        args=own.get(kind, {}),
        priority=PrioritySpec(kind=chance.choice(["linear_decay", "tag"])) if replays else PrioritySpec(),
        max_uses=max_uses,
        cooldown_s=chance.choice([0.0, 0.3, 5.0]) if max_uses != 1 else 0.0,
        capacity=chance.choice([0, batch, 2 * batch, 10 * batch]),
        evict_when_full=replays,
    )
    sizes = Sizes(
        steps=chance.randint(1, 12),
        groups=groups,
        repeat_times=repeat_times,
        interval=interval,
        slots=chance.randint(1, 8),
        first_version=chance.choice([0, 0, 5]),
        tail=chance.choice([0.1, 2.0, 20.0]),
        fail_p=chance.choice([0.0, 0.0, 0.2]),
    )
    return spec, sizes


@pytest.mark.parametrize("kind", POLICIES.names())
def test_any_stage_comes_to_its_end_and_no_promise_is_broken_on_the_way(kind: str) -> None:
    played = 0
    for seed in WORLDS:
        spec, sizes = drawn(kind, seed)
        batch = sizes.groups * sizes.repeat_times
        if standstill(spec, interval=sizes.interval, batch=batch, repeat_times=sizes.repeat_times) is not None:
            continue  # refused when it is submitted
        world = PolicyWorld(make_policy(spec), spec, sizes, seed)
        try:
            world.run()
        except AssertionError as error:
            raise AssertionError(f"{kind}, world {seed}: {spec}, {sizes}") from error
        played += 1
    assert played >= len(WORLDS) // 2
