"""Weights in the memory of one machine, and explorers that somebody else starts."""

from __future__ import annotations

import pytest
from synthetic.worlds.desk import stage_of

from rftd.daemon.run.supervisor.reach import within_reach
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import ExperimentSpec


def spec(*syncs: Synchronizer, turns: bool = False) -> ExperimentSpec:
    stages = tuple(stage_of(name=str(number), synchronizer=sync, turns=turns) for number, sync in enumerate(syncs))
    return ExperimentSpec(project="p", name="n", job_dir="/j", stages=stages, config={}, warnings=("one",))


MEMORY, FILES = Synchronizer(sync_method="memory"), Synchronizer(sync_method="checkpoint")


def test_another_daemons_explorers_get_files() -> None:
    found = within_reach(spec(MEMORY, FILES), frozenset(("trainer",)))
    assert [stage.synchronizer for stage in found.stages] == [FILES, FILES]
    assert found.warnings[0] == "one"
    assert "travel as checkpoint files" in found.warnings[1]


def test_whoever_starts_workers_is_told_where_they_may_be() -> None:
    found = within_reach(spec(MEMORY), frozenset())
    assert found.stages == spec(MEMORY).stages
    assert "external explorers on another machine" in found.warnings[1]


@pytest.mark.parametrize("roles", [("explorer", "trainer"), ("explorer",)])
def test_a_daemon_that_starts_explorers_leaves_it_as_it_is(roles: tuple[str, ...]) -> None:
    assert within_reach(spec(MEMORY), frozenset(roles)) == spec(MEMORY)


@pytest.mark.parametrize("reaching", [spec(FILES), spec(MEMORY, turns=True)])
def test_files_and_a_shared_device_reach_everybody(reaching: ExperimentSpec) -> None:
    assert within_reach(reaching, frozenset(("trainer",))) == reaching
