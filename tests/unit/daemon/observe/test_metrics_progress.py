"""The gauge of progress, by which RftdExperimentStalled is raised: of roles at work alone, and from when they were."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest
from synthetic.daemon.gauges import shown
from synthetic.log.synthetic_run import spec_of

from rftd.daemon.observe.metrics_spec import declared_by
from rftd.daemon.observe.metrics_state import AtScrape, show_state
from rftd.ops.metrics import Metrics
from rftd.storage.queries.standing import Figures, LastStep, Standing
from rftd.streams.spec.engines import ServingSpec
from rftd.streams.spec.spec import ExperimentSpec, StageSpec, TasksetSpec

ID = UUID(int=7)
S = 10**9
SFT, RFT = spec_of("small", 5).stages
COLLECTS = msgspec.structs.replace(RFT, kind="explore", taskset=TasksetSpec(name="t", path="/t.jsonl"))
BENCH = msgspec.structs.replace(RFT, kind="explore", taskset=None)
SERVES = msgspec.structs.replace(RFT, serving=ServingSpec(address="127.0.0.1", port=0))


def progress(
    stages: tuple[StageSpec, ...],
    *,
    stage: int = 0,
    state: str = "running",
    state_s: int = 10,
    stage_s: int | None = 20,
    produced_s: int | None = None,
    step_s: int | None = None,
) -> dict[str, float]:
    """The gauge by role, of an experiment at these moments."""
    spec: ExperimentSpec = msgspec.structs.replace(spec_of("small", 5), stages=stages)
    standing = Standing(
        id=str(ID),
        parent=None,
        name="small",
        number=1,
        state=state,
        state_ns=state_s * S,
        queue_position=None,
        queue_wait_ns=0,
        submitted_ns=0,
        stage=stage,
        stage_ns=None if stage_s is None else stage_s * S,
        signal_cause=None,
        step=0,
        total_steps=5,
        produced_ns=None if produced_s is None else produced_s * S,
        published_version=None,
        served_version=None,
        checkpoint_ns=None,
    )
    step = None if step_s is None else LastStep(experiment=str(ID), batch="b", metrics={}, completed_ns=step_s * S)
    metrics = Metrics(version="1")
    figures = Figures(standing=standing, step=step, rewards=[], scores={})
    found = AtScrape(figures=[figures], buffers={}, held=[], declared={ID: declared_by(ID, spec)}, now_ns=999 * S)
    show_state(metrics, found, {})
    gauge = "rftd_experiment_last_progress_timestamp_seconds{experiment=small,role="
    return {
        name.removeprefix(gauge).rstrip("}"): value
        for name, value in shown(metrics.expose().decode()).items()
        if name.startswith(gauge)
    }


def test_a_stage_that_trains_on_a_dataset_expects_nothing_of_explorers() -> None:
    """They had finished nothing since the stage before, and a healthy run raised the alert."""
    assert progress((RFT, SFT), stage=1, stage_s=500, produced_s=490, step_s=800) == {"trainer": 800}


def test_who_has_not_begun_yet_is_counted_from_the_beginning_of_its_stage() -> None:
    assert progress((SFT, RFT), stage=1, stage_s=500, step_s=499) == {"explorer": 500, "trainer": 500}
    assert progress((RFT,), stage_s=None) == {"explorer": 10, "trainer": 10}, "no worker has ever come"


def test_who_is_resumed_is_counted_from_then() -> None:
    assert progress((RFT,), state_s=700, produced_s=90, step_s=100) == {"explorer": 700, "trainer": 700}
    assert progress((RFT,), state_s=700, produced_s=710, step_s=100) == {"explorer": 710, "trainer": 700}


@pytest.mark.parametrize("state", ["paused", "completed"])
def test_of_one_that_does_not_run_it_is_what_was_done(state: str) -> None:
    assert progress((RFT,), state=state, state_s=700, produced_s=90, step_s=100) == {"explorer": 90, "trainer": 100}
    assert progress((RFT,), state=state, state_s=700) == {}


def test_who_evaluates_only_or_serves_strangers_waits_for_long() -> None:
    assert progress((BENCH,)) == {}
    assert progress((SERVES,), produced_s=90, step_s=100) == {}
    assert progress((COLLECTS,), produced_s=90) == {"explorer": 90}
