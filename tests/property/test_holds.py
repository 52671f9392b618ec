"""Whoever decides nothing says why, and it is so: any stage, policy and schedule, with workers that come and go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.worlds.desk import REPEAT, stage_of
from synthetic.worlds.hold_world import HoldWorld

from rftd.streams.spec.sections import OverRollout, StragglerReissue, Synchronizer
from rftd.streams.spec.spec import (
    AlgorithmSpec,
    PolicySpec,
    RolloutSpec,
    StageSpec,
    TasksetSpec,
)

KINDS = ["hard_bound", "in_order", "areal", "verl_window", "windowed", "weight_fifo", "ready_first", "sample_lag"]
HELD = TasksetSpec(name="held", path="none", rows=5)


@st.composite
def stages(draw: st.DrawFn) -> StageSpec:
    """A stage of two to six steps, or one that only explores, or that trains on a dataset."""
    what = draw(st.sampled_from(["both"] * 6 + ["explore", "train"]))
    kind = draw(st.sampled_from(KINDS)) if what == "both" else "hard_bound"
    policy = PolicySpec(
        kind=kind,
        args={"wait": draw(st.booleans())} if kind == "hard_bound" else {},
        max_staleness_versions=draw(st.integers(0, 3)),
        bounded=draw(st.booleans()),
        max_inflight_batches=draw(st.integers(1, 4)),
        min_group_members=draw(st.integers(1, 2)),
        max_uses=draw(st.sampled_from([1, 1, 2])),
        cooldown_s=draw(st.sampled_from([0.0, 2.0])),
    )
    more: dict[str, object] = {"total_steps": draw(st.integers(2, 6))}
    if what == "explore":
        more = {"kind": "explore", "total_steps": 0, "collect_groups": 6}
    if what == "train":
        more = {
            "kind": "train",
            "total_steps": 4,
            "taskset": None,
            "dataset": TasksetSpec(name="rows", path="none", rows=9, digest="d"),
        }
    return stage_of(
        algorithm=AlgorithmSpec(kind="grpo", repeat_times=REPEAT),
        policy=policy,
        synchronizer=Synchronizer(
            sync_style=draw(
                st.sampled_from(["fixed", "explorer_driven", "trainer_driven", "fully_async", "fully_async"])
            ),
            sync_interval=draw(st.integers(1, 2)),
            sync_offset=draw(st.integers(0, 1)),
            sync_timeout=draw(st.sampled_from([3.0, 1000.0])),
        ),
        rollout=RolloutSpec(
            max_timeout_s=20.0,
            lease_rollouts=draw(st.sampled_from([0, 1, 3])),
            over_rollout=OverRollout(ratio=draw(st.sampled_from([0.0, 0.5]))),
            straggler_reissue=StragglerReissue(enable=draw(st.booleans()), ratio=4.0),
        ),
        max_read_timeout_s=draw(st.sampled_from([40.0, 1800.0])),
        evals=draw(st.sampled_from([(), (HELD,)])) if what == "both" else (),
        eval_interval=1,
        **more,
    )


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(stage=stages(), seed=st.integers(0, 1 << 16), calm=st.booleans())
def test_whoever_decides_nothing_says_why_and_it_is_so(stage: StageSpec, seed: int, calm: bool) -> None:
    HoldWorld(stage, seed, calm=calm).run(250)


def test_the_worlds_meet_the_common_holds() -> None:
    """The control: a world in which nobody stops would prove nothing."""
    seen = Counter[str]()
    for seed in range(12):
        seen += HoldWorld(stage_of(evals=(HELD,), eval_interval=1, total_steps=4), seed).run(400)
    assert {"Paused", "TooFewExperiences", "PlannedAhead", "PolicyFull", "NoExplorers", "StepsLeft"} <= set(seen)
