"""Section `policy` and the replay buffer: what they resolve to, and what contradicts itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.loading import Submission
from rftd.streams.spec.spec import PolicySpec, PrioritySpec

Errors = Callable[..., list[str]]
Load = Callable[..., Submission]
BUFFER = "buffer.trainer_input.experience_buffer"
ASYNC = "synchronizer.sync_style=fully_async"
STAGES = """
synchronizer: {sync_style: fully_async}
policy: {kind: areal, max_concurrent: 4, max_staleness: 5}
stages:
- stage_name: a
- stage_name: b
  policy: {kind: windowed}
- stage_name: c
  policy: {max_concurrent: 2, kind: areal}
"""


def policy(load: Load, *overrides: str) -> PolicySpec:
    return load(overrides=overrides).spec.stages[0].policy


@pytest.mark.parametrize(
    ("given", "args", "bounded"),
    [
        ("{kind: hard_bound, max_staleness: 3, abort_inflight: true}", {"abort_inflight": True}, True),
        ("{kind: in_order, max_staleness: 3}", {}, True),
        ("{kind: weight_fifo, max_staleness: 3, wait: true}", {"wait": True}, True),
        ("{kind: areal, max_staleness: 3, max_concurrent: 16}", {"max_concurrent": 16}, False),
        (
            "{kind: verl_window, staleness_threshold: 0.25}",
            {"staleness_threshold": 0.25, "trigger_parameter_sync_step": 1},
            False,
        ),
        (
            "{kind: windowed, max_staleness: 3, freshest_first: true}",
            {"freshest_first": True},
            True,
        ),
        ("{kind: weight_fifo, max_staleness: 3}", {}, True),
        ("{kind: ready_first, max_staleness: 3}", {}, False),
        ("{kind: sample_lag, max_lag_samples: 64}", {"max_lag_samples": 64}, False),
    ],
)
def test_each_kind_has_its_own_fields(load: Load, given: str, args: dict[str, object], bounded: bool) -> None:
    spec = policy(load, ASYNC, f"policy={given}")
    assert spec.kind in given
    assert spec.args == args
    assert spec.bounded is bounded
    assert spec.max_staleness_versions == (3 if "max_staleness" in given else 2)


def test_without_a_policy_it_is_a_hard_bound(load: Load) -> None:
    assert policy(load).kind == "hard_bound"
    assert policy(load).capacity == 10000
    assert policy(load, "deterministic=true").kind == "in_order"


def test_the_replay_buffer_gives_priority_uses_and_cooldown(load: Load) -> None:
    fifo = policy(load, ASYNC)
    assert (fifo.priority, fifo.max_uses, fifo.evict_when_full, fifo.bounded) == (PrioritySpec(), 1, False, True)
    once = policy(load, ASYNC, f"{BUFFER}.use_priority_queue=true")
    assert once.priority == PrioritySpec(kind="linear_decay", args={"decay": 2.0})
    assert (once.max_uses, once.evict_when_full, once.bounded) == (1, True, True)
    replay = f"{BUFFER}.replay_buffer={{enable: true, reuse_cooldown_time: 1.5, priority_fn_args: {{decay: 0.6}}}}"
    again = policy(load, ASYNC, replay)
    assert (again.max_uses, again.cooldown_s, again.bounded) == (0, 1.5, False)
    limited = replay.replace("priority_fn_args", "priority_fn: decay_limit_randomization, priority_fn_args")
    assert policy(load, ASYNC, limited).max_uses == 3
    assert policy(load, ASYNC, limited.replace("0.6", "0.6, use_count_limit: 5, sigma: 0.1")).max_uses == 5
    bounded = policy(load, ASYNC, replay, "policy={kind: hard_bound, max_staleness: 4}")
    assert bounded.bounded
    assert bounded.max_staleness_versions == 4


def test_a_stage_of_another_kind_inherits_nothing_of_the_policy(load: Load, small: str) -> None:
    specs = [stage.policy for stage in load(small + STAGES).spec.stages]
    assert [spec.kind for spec in specs] == ["areal", "windowed", "areal"]
    assert [spec.max_staleness_versions for spec in specs] == [5, 2, 5]
    assert specs[2].args == {"max_concurrent": 2}


@pytest.mark.parametrize(
    ("overrides", "field", "says", "fix"),
    [
        (
            ["policy={kind: hard_bound, max_staleness: 0}", "synchronizer.sync_offset=2"],
            "policy.max_staleness",
            "is 0, but with this synchronizer an experience is up to 2 steps old",
            "at least 2",
        ),
        (
            [f"{BUFFER}.reuse_cooldown_time=3"],
            "replay_buffer.reuse_cooldown_time",
            "experiences are never reused",
            "true",
        ),
        ([f"{BUFFER}.capacity=7"], "experience_buffer.capacity", "one step trains 8 experiences", "at least 8"),
        (["policy={kind: areel}"], "policy.kind", "no policy 'areel'", "did you mean 'areal'?"),
        (["policy={max_staleness: 2}"], "policy.kind", "is required", "one of hard_bound"),
        (["policy={kind: areal, max_concurent: 2}"], "policy.max_concurent", "unknown field", "'max_concurrent'"),
        (["policy={kind: areal, max_lag_samples: 2}"], "policy.max_lag_samples", "unknown field", "max_staleness"),
        (
            ["policy={kind: hard_bound, min_group_members: 5}"],
            "min_group_members",
            "a group has 4 rollouts",
            "4 or less",
        ),
        (["policy={kind: plugin, name: mine}"], "policy.name", "unknown staleness policy 'mine'", "rftd.policies"),
        (["deterministic=true", "policy={kind: areal}"], "policy.kind", "in the order of the dataset", "in_order"),
        (["deterministic=true", f"{BUFFER}.replay_buffer.enable=true"], "replay_buffer.enable", "once", "false"),
        ([f"{BUFFER}.replay_buffer={{enable: true, priority_fn: linear}}"], "priority_fn", "unknown", "linear_decay"),
        (
            [f"{BUFFER}.replay_buffer={{enable: true, priority_fn_args: {{decai: 1}}}}"],
            "priority_fn_args",
            "takes no argument 'decai'",
            "did you mean 'decay'?",
        ),
        *(
            (
                [f"policy={{kind: {kind}}}", f"{BUFFER}.replay_buffer={{enable: true, reuse_cooldown_time: 1}}"],
                "policy.kind",
                "trained repeatedly",
                "policy.max_staleness",
            )
            for kind in ("in_order", "weight_fifo")
        ),
        (
            [f"{BUFFER}.replay_buffer={{enable: true, reuse_cooldown_time: 1, priority_fn: tag}}"],
            "priority_fn",
            "trained repeatedly",
            "linear_decay",
        ),
        (
            ["policy={kind: sample_lag, max_lag_samples: 4}", ASYNC, "synchronizer.sync_interval=4"],
            "policy.kind",
            "admits",
            "sync_interval",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_with_the_nearest_valid_setting(
    errors: Errors, overrides: list[str], field: str, says: str, fix: str
) -> None:
    texts = errors(overrides=overrides)
    assert len(texts) == 1, texts
    assert field in texts[0], texts[0]
    assert says in texts[0], texts[0]
    assert fix in texts[0], texts[0]


def test_an_order_that_does_not_sink_with_uses_needs_something_that_ends_them(load: Load) -> None:
    again = f"{BUFFER}.replay_buffer={{enable: true, reuse_cooldown_time: 1, priority_fn: tag}}"
    bounded = policy(load, ASYNC, again, "policy={kind: weight_fifo, max_staleness: 4}")
    assert (bounded.bounded, bounded.max_uses, bounded.priority) == (True, 0, PrioritySpec(kind="tag"))
    limited = again.replace("priority_fn: tag", "priority_fn: decay_limit_randomization")
    assert policy(load, ASYNC, limited, "policy={kind: in_order}").max_uses == 3
    once = f"{BUFFER}.replay_buffer={{enable: true, priority_fn: tag}}"
    assert policy(load, ASYNC, once).priority == PrioritySpec(kind="tag")
