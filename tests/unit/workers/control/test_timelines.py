"""The timelines of the configuration guide, drawn from what dispatcher, planner and trainer did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from synthetic.worlds.desk import stage_of
from synthetic.worlds.sync_model import SyncModel

import rftd.ops as anchor
from rftd.streams.spec.schedule import needed_staleness, publish_due, window_steps
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import PolicySpec

ROOT = Path(anchor.__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden" / "sync" / "timelines.txt"


def model_of(sync: Synchronizer, steps: int, **changes: float | bool) -> SyncModel:
    """A stage with the bound and the admission that `fixed` needs, run to its end."""
    policy = PolicySpec(max_staleness_versions=needed_staleness(sync), max_inflight_batches=window_steps(sync, 0))
    return SyncModel(stage_of(total_steps=steps, synchronizer=sync, policy=policy), seed=7, **changes).run()


def versions_of(model: SyncModel) -> list[int]:
    """The weight version of each explore step; all of its groups begin on one."""
    size = model.stage.batch_size
    steps = [model.begun[at : at + size] for at in range(0, len(model.begun), size)]
    assert all(len({group.version for group in step}) == 1 for step in steps), steps
    return [step[0].version for step in steps]


def parted(name: str, steps: Sequence[int], ends: Sequence[int], mark: str) -> str:
    """`name` and the numbers of steps, with a mark after each of `ends`; many in a row are shortened."""
    parts, begin = [], steps[0]
    for end in ends:
        row = [f"{name}{step}" for step in range(begin, end + 1)]
        parts.append(" ".join(row) if len(row) < 4 else f"{row[0]}..{row[-1]}")
        begin = end + 1
    return " ".join(f"{part} |{mark}|" for part in parts)


def drawn(interval: int, offset: int, explore_steps: int, mark: str, *, weights: bool) -> str:
    """One line, as the guide draws it."""
    sync = Synchronizer(sync_style="fixed", sync_interval=interval, sync_offset=offset)
    model = model_of(sync, 12)
    window_at = [group.window for group in model.begun[:: model.stage.batch_size]]
    explored = range(1, explore_steps + 1)
    ends = [step for step in explored if window_at[step] != window_at[step - 1]]
    trained = range(1, explore_steps - offset + 1)
    published = [step for step in trained if publish_due(model.stage, step)]
    line = f"offset {offset}, interval {interval}:  explorer {parted('E', explored, ends, mark)}"
    line = f"{line:<63}trainer {parted('T', trained, published, mark)}"
    if not weights:
        return line
    used: dict[int, list[int]] = {}
    for step, version in enumerate(versions_of(model)[:explore_steps], start=1):
        used.setdefault(version, []).append(step)
    named = (
        f"{','.join(f'E{step}' for step in steps) if len(steps) < 4 else f'E{steps[0]}..E{steps[-1]}'}:v{version}"
        for version, steps in used.items()
    )
    return f"{line:<97}weights used: {' '.join(named)}"


def test_the_timelines_of_the_guide() -> None:
    lines = [
        drawn(2, 0, 4, "sync", weights=False),
        drawn(1, 1, 4, "s", weights=True),
        drawn(4, 1, 9, "s", weights=True),
    ]
    assert "\n".join(lines) + "\n" == GOLDEN.read_text()


def test_the_documentation_shows_them() -> None:
    assert GOLDEN.read_text() in (ROOT / "docs" / "concepts.md").read_text()


@pytest.mark.parametrize(
    ("explorer", "trainer", "offset", "versions"),
    [
        (2, 1, 0, [0, 0, 2, 2, 4, 4, 6, 6]),
        (1, 2, 0, [0, 0, 2, 2, 4, 4, 6, 6]),
        (2, 3, 0, [0, 0, 0, 0, 3, 3, 6, 6]),
        (4, 6, 0, [0, 0, 0, 0, 0, 0, 0, 0]),
        (3, 2, 1, [0, 0, 0, 0, 2, 2, 2, 6]),
    ],
)
def test_each_side_may_have_its_own_interval(explorer: int, trainer: int, offset: int, versions: list[int]) -> None:
    sync = Synchronizer(
        sync_style="fixed",
        sync_offset=offset,
        explorer_sync_interval=explorer,
        trainer_sync_interval=trainer,
    )
    model = model_of(sync, 14)
    assert versions_of(model)[:8] == versions
    assert max(model.staleness) == needed_staleness(sync)
    assert not model.desk.state.replay_buffer.books.retired


@pytest.mark.parametrize("style", ["fixed", "explorer_driven", "trainer_driven"])
def test_explorers_finish_what_is_under_way_before_they_take_weights(style: str) -> None:
    model = model_of(Synchronizer(sync_style=style, sync_interval=2, sync_offset=1), 9)
    assert {group.window for group in model.begun} >= {0, 1, 2}
    for group in model.begun:
        assert group.outstanding <= {group.window}


def test_the_trainer_says_what_it_has_whenever_explorers_ask() -> None:
    model = model_of(Synchronizer(sync_style="explorer_driven", sync_interval=2), 8)
    asked = {request.window for request in model.requests}
    assert asked == {group.window for group in model.begun} - {0}
    for group in model.begun:
        assert group.version <= group.trained, "published on request, and none is older than the question"
    first = {group.window: group for group in reversed(model.begun)}
    assert all(begun.version >= request.version for request in model.requests for begun in [first[request.window]])


def test_driven_by_the_trainer_explorers_take_what_it_has_published() -> None:
    model = model_of(
        Synchronizer(sync_style="trainer_driven", explorer_sync_interval=2, trainer_sync_interval=3),
        11,
    )
    assert not model.requests
    assert not model.overdue
    assert {group.version for group in model.begun} <= {0, 3, 6, 9}
    first = {group.window: group for group in reversed(model.begun)}
    assert all(begun.version == begun.trained // 3 * 3 for begun in first.values())
