"""The reference of a stage that Tinker trains: the base model, or the weights that the stage began with."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from synthetic.models.tinker_rehearsal import Rehearsal

from rftd.ops.errors import ConfigError
from rftd.storage.files.service_state import ServiceState
from rftd.workers.engines.contract.trainer import TrainerBench, make_batch, trained


def test_the_base_model_is_the_reference_and_is_never_trained(bench: TrainerBench, service: Rehearsal) -> None:
    stage = bench.stage(kl_coef=0.5)
    engine = bench.opened(stage)
    engine.begin_stage(stage)
    kl = [engine.train(make_batch(step)).metrics["actor/kl_loss"] for step in (1, 2, 3)]
    assert kl[0] == 0.0
    assert kl[1] > 0
    policy, reference = service.runs.values()
    assert not reference.table.any()
    free = bench.stage(kl_coef=0.0)
    other = bench.opened(free)
    trained(other, free, range(1, 4))
    assert np.abs(policy.table - service.runs["run2"].table).max() > 1e-4, "the distance holds the weights back"


def test_a_run_that_goes_on_compares_with_the_base_model_again(bench: TrainerBench, service: Rehearsal) -> None:
    stage = bench.stage(kl_coef=0.5)
    whole = bench.opened(stage)
    trained(whole, stage, range(1, 4))
    folder = bench.new_folder() / "global_step_3"
    whole.save(folder, hf=False)
    resumed = bench.opened(stage)
    resumed.load(folder, stage)
    assert resumed.train(make_batch(4)).metrics == whole.train(make_batch(4)).metrics


@pytest.mark.parametrize("killed", [False, True])
def test_a_later_stage_compares_with_the_weights_that_it_began_with(
    bench: TrainerBench, service: Rehearsal, killed: bool
) -> None:
    first = bench.opened(bench.stage("sft"))
    trained(first, bench.stage("sft"), range(1, 4))
    stage = bench.stage(kl_coef=0.5)
    if killed:
        folder = bench.new_folder() / "global_step_3"
        first.save(folder, hf=False)
        first = bench.opened(stage)
        first.load(folder, stage)
    else:
        first.begin_stage(stage)
    began = next(run.table.copy() for run in service.runs.values() if run.table.any())
    assert first.train(make_batch(4)).metrics["actor/kl_loss"] == 0.0
    folder = bench.new_folder() / "global_step_4"
    first.save(folder, hf=False)
    kept = ServiceState.read(folder).reference
    np.testing.assert_array_equal(service.saved[kept][0].table, began)
    resumed = bench.opened(stage)
    resumed.load(folder, stage)
    expected = first.train(make_batch(5)).metrics
    assert expected["actor/kl_loss"] > 0
    assert resumed.train(make_batch(5)).metrics == expected


def test_a_stage_that_compared_with_nothing_cannot_begin_to(bench: TrainerBench) -> None:
    engine = bench.opened(bench.stage("sft"))
    trained(engine, bench.stage("sft"), range(1, 3))
    engine.begin_stage(bench.stage(kl_coef=0.0))
    engine.train(msgspec.structs.replace(make_batch(3), stage_step=1))
    folder = bench.new_folder() / "global_step_3"
    engine.save(folder, hf=False)
    stage = bench.stage(kl_coef=0.5)
    with pytest.raises(ConfigError, match="stage rft began with the weights of step 2"):
        bench.opened(stage).load(folder, stage)
