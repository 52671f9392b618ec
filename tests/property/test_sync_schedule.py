"""No schedule stands still: any intervals, offsets and batch sizes; rollouts fail and daemons restart."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.worlds.desk import stage_of
from synthetic.worlds.sync_model import SyncModel

from rftd.streams.spec.schedule import needed_staleness, step_of_window, window_steps
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import AlgorithmSpec, PolicySpec, StageSpec, TasksetSpec


@st.composite
def stages(draw: st.DrawFn) -> StageSpec:
    """A stage whose bound is the least that its schedule needs, or a little more."""
    numbers = st.integers(1, 4)
    sync = Synchronizer(
        sync_style=draw(st.sampled_from(["fixed", "explorer_driven", "trainer_driven"])),
        sync_offset=draw(st.integers(0, 2)),
        explorer_sync_interval=draw(numbers),
        trainer_sync_interval=draw(numbers),
    )
    repeat, groups = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    window = window_steps(sync, 0)
    return stage_of(
        batch_size=groups,
        train_batch_size=draw(st.one_of(st.just(groups * repeat), st.integers(1, 12))),
        total_steps=draw(st.integers(3, 9)),
        algorithm=AlgorithmSpec(kind="grpo", repeat_times=repeat),
        taskset=TasksetSpec(name="tasks", path="none", rows=7, max_retry_times=1),
        synchronizer=sync,
        policy=PolicySpec(
            kind=draw(st.sampled_from(["hard_bound", "hard_bound", "in_order", "windowed", "ready_first"])),
            max_staleness_versions=needed_staleness(sync) + draw(st.sampled_from([0, 0, 1, 3])),
            max_inflight_batches=window if sync.sync_style == "fixed" else max(2, window),
        ),
    )


@settings(max_examples=150, deadline=None)
@given(
    stage=stages(),
    seed=st.integers(0, 1 << 16),
    failing=st.sampled_from([0.0, 0.0, 0.2, 0.5]),
    restarting=st.sampled_from([0.0, 0.1]),
)
def test_every_schedule_comes_to_its_end(stage: StageSpec, seed: int, failing: float, restarting: float) -> None:
    model = SyncModel(stage, seed, failing=failing, restarting=restarting).run()
    versions: dict[int, set[int]] = {}
    for group in model.begun:
        versions.setdefault(group.window, set()).add(group.version)
        assert group.outstanding <= {group.window}, "a window begins when nothing is under way"
    assert all(len(each) == 1 for each in versions.values()), versions
    windows = [(group.window, group.place) for group in model.begun]
    assert windows == sorted(set(windows)), "no window comes back, no place is taken twice"
    if stage.synchronizer.sync_style == "fixed":
        assert all(version == step_of_window(stage.synchronizer, window) for window, (version,) in versions.items())
    if not failing and stage.train_batch_size % stage.algorithm.repeat_times == 0:
        assert not model.desk.state.replay_buffer.books.retired, "nothing was made in vain"
    assert max(model.staleness) <= stage.policy.max_staleness_versions
