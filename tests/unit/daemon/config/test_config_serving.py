"""`mode: serve`: what a file may say of it, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rftd.streams.log.bounds import LAST_INDEX
from rftd.streams.spec.engines import ServingSpec

SERVE = ["mode=serve", "buffer.explorer_input={}"]


def test_a_stage_that_serves_needs_no_tasks_and_never_waits(load: Callable[..., Any]) -> None:
    spec = load(overrides=[*SERVE, "explorer.proxy_port=9000"]).spec
    (stage,) = spec.stages
    assert (spec.half, stage.kind, stage.total_steps) == ("both", "both", 5)
    assert stage.serving == ServingSpec(address="127.0.0.1", port=9000)
    assert stage.taskset.path == f"{spec.job_dir}/serving"
    assert (stage.taskset.rows, stage.synchronizer.sync_style, stage.policy.bounded) == (
        LAST_INDEX,
        "fully_async",
        False,
    )
    assert stage.max_read_timeout_s == 1e9
    given = [
        "buffer.trainer_input.experience_buffer.max_read_timeout=60",
        "policy={kind: hard_bound, max_staleness: 2}",
    ]
    (stage,) = load(overrides=[*SERVE, *given]).spec.stages
    assert (stage.max_read_timeout_s, stage.policy.bounded) == (60.0, True)


def test_a_chat_with_a_checkpoint_has_no_end(load: Callable[..., Any]) -> None:
    (stage,) = load(overrides=[*SERVE, "explorer.collect_only=true", "buffer.total_steps=null"]).spec.stages
    assert (stage.kind, stage.collect_groups) == ("explore", LAST_INDEX)


def test_no_other_mode_serves(load: Callable[..., Any]) -> None:
    (stage,) = load(overrides=["explorer.proxy_port=9000", "explorer.listen_address=0.0.0.0"]).spec.stages
    assert stage.serving is None


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("buffer.total_steps=null", "buffer.total_steps"),
        ("explorer.proxy_port=70000", "explorer.proxy_port"),
        ("explorer.listen_address=example.org", "explorer.listen_address"),
        ("explorer.min_running_model_num=2", "explorer.min_running_model_num"),
        ("explorer={proxy_port: 0, rollout_model: {engine_num: 2}}", "explorer.proxy_port"),
        ("stages=[{stage_name: a}, {stage_name: b}]", "mode"),
        ("model.temperature=0", "model.temperature"),
        ("algorithm={algorithm_type: sft}", "mode"),
    ],
)
def test_what_cannot_be_served_is_named(errors: Callable[..., list[str]], override: str, field: str) -> None:
    found = errors(overrides=[*SERVE, "buffer.train_batch_size=4", override])
    assert any(f"] {field}: " in text for text in found), found
