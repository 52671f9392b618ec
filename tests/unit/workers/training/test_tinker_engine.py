"""The Tinker trainer engine against a rehearsal of the service: what it trains, saves, goes on from and refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from synthetic.models.tinker_rehearsal import KEY, Rehearsal, RehearsalService

from rftd.ops.errors import ConfigError, DataError, RftdError, WorkError
from rftd.storage.files.service_state import ServiceState
from rftd.streams.spec.spec import AlgorithmSpec, StageSpec
from rftd.workers.engines.contract.trainer import NAMED_CHECKS, Check, TrainerBench, make_batch, trained
from rftd.workers.engines.tinker import sdk
from rftd.workers.engines.tinker.access import Access
from rftd.workers.engines.tinker.trainer.engine import TinkerTrainerEngine
from rftd.workers.learning.engine_registry import check_objective
from rftd.workers.weights.channel import WeightService
from rftd.workers.weights.service import NamedSnapshot


def opened(bench: TrainerBench, stage: StageSpec) -> TinkerTrainerEngine:
    engine = bench.opened(stage)
    assert isinstance(engine, TinkerTrainerEngine)
    return engine


def with_loss(stage: StageSpec, loss: str, **arguments: object) -> StageSpec:
    algorithm: AlgorithmSpec = msgspec.structs.replace(
        stage.algorithm, policy_loss=loss, policy_loss_args=dict(arguments)
    )
    return msgspec.structs.replace(stage, algorithm=algorithm)


@pytest.mark.parametrize("kl_coef", [0.0, 0.01])
@pytest.mark.parametrize("check", NAMED_CHECKS, ids=lambda check: check.__name__)
def test_contract(check: Check, bench: TrainerBench, kl_coef: float) -> None:
    bench.kl_coef = kl_coef
    check(bench)


def test_sft_learns_and_takes_one_pass_a_step(bench: TrainerBench, service: Rehearsal) -> None:
    stage = bench.stage("sft")
    engine = opened(bench, stage)
    engine.begin_stage(stage)
    losses = [engine.train(make_batch(step)).metrics["actor/sft_loss"] for step in range(1, 25)]
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.2
    assert service.log == ["new_run", *["gradient", "step"] * 24]


@pytest.mark.parametrize(
    ("loss", "arguments", "own"),
    [
        ("sft", {}, True),
        ("importance_sampling", {}, True),
        ("ppo", {"clip_ratio_c": 1e9, "clip_range_high": 0.3}, True),
        ("ppo", {}, False),
        ("gspo", {}, False),
        ("opmd", {}, False),
    ],
)
def test_the_services_loss_is_ours(
    bench: TrainerBench, service: Rehearsal, monkeypatch: pytest.MonkeyPatch, loss: str, arguments: Any, own: bool
) -> None:
    """The weights come out alike whichever way the gradient goes."""
    stage = with_loss(bench.stage("sft" if loss == "sft" else "rft"), loss, **arguments)
    trained(bench.opened(stage), stage, range(1, 4))
    assert ("forward" not in service.log) == own
    monkeypatch.setattr("rftd.workers.engines.tinker.trainer.engine.service_loss", lambda _objective: None)
    trained(bench.opened(stage), stage, range(1, 4))
    one, other = (run.table for run in service.runs.values())
    assert np.abs(one).max() > 1e-3
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_run_goes_on_from_its_name_with_adams_moments(bench: TrainerBench, service: Rehearsal) -> None:
    stage = bench.stage()
    trained(bench.opened(stage), stage, range(1, 7))
    first = opened(bench, stage)
    trained(first, stage, range(1, 4))
    folder = bench.new_folder() / "global_step_3"
    first.save(folder, hf=True)
    assert sorted(path.name for path in (folder / "actor").iterdir()) == ["service.json", "trainer_state.json"]
    # What was begun after the checkpoint is in nobody's weights: here a step, and a gradient without one.
    first.train(make_batch(4))
    second = opened(bench, stage)
    second.load(folder, stage)
    trained(second, stage, range(4, 7))
    whole, lost, resumed = service.runs.values()
    np.testing.assert_array_equal(whole.table, resumed.table)
    np.testing.assert_array_equal(whole.square, resumed.square)
    assert resumed.made_of == whole.made_of
    assert len(lost.made_of) == 4
    checksums = {first.checksum(), second.checksum(), ServiceState.read(folder).checksum}
    assert len(checksums) == 3


def test_a_stage_begins_with_a_fresh_optimizer(bench: TrainerBench, service: Rehearsal) -> None:
    sft = bench.stage("sft")
    rft = bench.stage("rft")
    engine = opened(bench, sft)
    trained(engine, sft, range(1, 4))
    engine.begin_stage(rft)
    before, after = service.runs.values()
    np.testing.assert_array_equal(before.table, after.table)
    assert before.square.any()
    assert not after.square.any()
    assert not service.saved, "what carried the weights over is deleted"
    engine.begin_stage(rft)
    assert len(service.runs) == 2, "a run without a step has a fresh optimizer already"


def test_weights_go_by_name_and_are_forgotten(bench: TrainerBench, service: Rehearsal) -> None:
    stage = bench.stage()
    engine = opened(bench, stage)
    trained(engine, stage, range(1, 3))
    snapshot = engine.snapshot()
    assert isinstance(snapshot, NamedSnapshot)
    assert isinstance(engine, WeightService)
    checksum = engine.checksum()
    engine.train(make_batch(3))
    assert snapshot.checksum() == checksum != engine.checksum()
    name = snapshot.name()
    assert len(service.saved[name][0].made_of) == 2, "weights of before the next step"
    with pytest.raises(ConfigError, match="stay at the service"):
        snapshot.weights()
    assert engine.holds_name(name)
    engine.forget_name(name)
    assert not engine.holds_name(name)
    engine.forget_name(name)


def test_a_checkpoint_that_the_service_forgot_is_an_error_of_data(bench: TrainerBench, service: Rehearsal) -> None:
    stage = bench.stage()
    engine = opened(bench, stage)
    trained(engine, stage, range(1, 2))
    folder = bench.new_folder() / "global_step_1"
    engine.save(folder, hf=False)
    engine.forget(ServiceState.read(folder))
    assert not service.saved
    with pytest.raises(DataError, match="has forgotten tinker://run0/weights/step-1-1") as error:
        opened(bench, stage).load(folder, stage)
    assert error.value.where == "tinker://run0/weights/step-1-1"
    other = TrainerBench("tinker", bench.new_folder(), arguments={"base_model": "org/other"}, model=bench.model)
    with pytest.raises(DataError, match="is of org/tiny at tinker"):
        other.opened(other.stage(kl_coef=0.0)).load(folder, stage)


def test_models_and_keys_that_are_refused_are_named(
    bench: TrainerBench, service: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = bench.stage()
    other = TrainerBench("tinker", bench.new_folder(), arguments={"base_model": "org/other"}, kl_coef=0.0)
    with pytest.raises(ConfigError, match="does not know the model 'org/other'") as error:
        other.opened(other.stage()).begin_stage(stage)
    assert error.value.field == "model.tinker.base_model"
    service.keys.clear()
    with pytest.raises(ConfigError, match="refuses the key of TINKER_API_KEY") as error:
        opened(bench, stage).begin_stage(stage)
    assert KEY not in str(error.value)
    monkeypatch.delenv("TINKER_API_KEY")
    monkeypatch.delenv("TRINITY_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="neither TINKER_API_KEY nor TRINITY_API_KEY is set"):
        bench.opened(stage)


def test_either_variable_has_the_key_and_no_error_shows_it() -> None:
    access = Access.of("", {"TRINITY_API_KEY": f" {KEY} "})
    assert access.variable == "TRINITY_API_KEY"
    assert access.key.reveal() == KEY
    for status in (0, 400, 401, 402, 403, 500):
        assert KEY not in str(access.error(status, f"sent {KEY}", "answer"))
    assert KEY not in str(access.unknown_model_error("m", KEY))
    assert KEY not in str(access.forgotten_error("tinker://x", KEY))
    assert KEY not in repr(vars(access))


@pytest.mark.parametrize(
    ("what", "change", "field"),
    [
        ("forward", lambda found: found | {"rows": found["rows"][1:]}, "loss_fn_outputs"),
        (
            "forward",
            lambda found: found | {"rows": [{"logprob": 1}, *found["rows"][1:]]},
            "loss_fn_outputs[0].logprobs",
        ),
        (
            "forward",
            lambda found: found | {"rows": [*found["rows"][:-1], {"logprobs": [0.0]}]},
            "loss_fn_outputs[15].logprobs",
        ),
        ("forward", lambda found: found | {"rows": [{"logprobs": "no"}] * 16}, "loss_fn_outputs[0].logprobs"),
        ("save_state", lambda found: None, "path"),
        ("save_state", lambda found: "tinker://another/weights/x", "path"),
    ],
)
def test_an_answer_of_another_shape_is_refused_with_its_field(
    bench: TrainerBench, way: RehearsalService, what: str, change: Callable[[Any], Any], field: str
) -> None:
    def strike(asked: str, work: Callable[[], Any]) -> Any:
        return change(work()) if asked == what else work()

    way.strike = strike
    stage = bench.stage()
    engine = opened(bench, stage)
    engine.begin_stage(stage)
    with pytest.raises(WorkError, match="answer of an unexpected shape") as error:
        engine.train(make_batch(1))
        engine.save(bench.new_folder(), hf=False)
    assert error.value.field == field


def test_a_service_that_sums_nothing_is_held_to_the_loss_of_each_token(
    bench: TrainerBench, way: RehearsalService
) -> None:
    factor = 1.0

    def strike(asked: str, work: Callable[[], Any]) -> Any:
        found = work()
        if asked != "gradient":
            return found
        share = factor * found["metrics"]["loss:sum"] / sum(len(each["logprobs"]) for each in found["rows"])
        rows = [each | {"elementwise_loss": [share] * len(each["logprobs"])} for each in found["rows"]]
        return {"rows": rows, "metrics": {}}

    way.strike = strike
    stage = bench.stage("sft")
    engine = opened(bench, stage)
    engine.begin_stage(stage)
    assert not engine.train(make_batch(1)).skipped
    factor = 2.0
    with pytest.raises(WorkError, match="computed the loss"):
        engine.train(make_batch(2))


def test_a_service_that_computes_another_loss_is_refused(bench: TrainerBench, way: RehearsalService) -> None:
    def strike(asked: str, work: Callable[[], Any]) -> Any:
        found = work()
        return found | {"metrics": {"loss:sum": 2 * found["metrics"]["loss:sum"]}} if asked == "gradient" else found

    way.strike = strike
    stage = bench.stage("sft")
    engine = opened(bench, stage)
    engine.begin_stage(stage)
    with pytest.raises(WorkError, match="computed the loss") as error:
        engine.train(make_batch(1))
    assert error.value.field == "metrics['loss:sum']"


def test_a_gradient_that_is_not_finite_never_leaves(bench: TrainerBench, way: RehearsalService) -> None:
    def strike(asked: str, work: Callable[[], Any]) -> Any:
        found = work()
        return {"rows": [{"logprobs": [float("nan")] * len(each["logprobs"])} for each in found["rows"]], "metrics": {}}

    stage = bench.stage()
    engine = opened(bench, stage)
    engine.begin_stage(stage)
    way.strike = strike
    before = engine.checksum()
    assert "not finite" in engine.train(make_batch(1)).skipped or engine.checksum() == before
    assert way.service.log == ["new_run", "forward"]
    way.strike = lambda _what, work: work()
    assert not engine.train(make_batch(2)).skipped


@pytest.mark.parametrize("spoilt", ["rows", "loss"])
def test_a_gradient_of_the_services_own_that_is_not_finite_is_left_behind(
    bench: TrainerBench, way: RehearsalService, spoilt: str
) -> None:
    """The service has it already, so another run goes on without it: the weights are those without this step."""
    stage = bench.stage("sft")
    whole = opened(bench, stage)
    trained(whole, stage, range(1, 4, 2))
    engine = opened(bench, stage)
    trained(engine, stage, range(1, 2))

    def strike(asked: str, work: Callable[[], Any]) -> Any:
        found = work()
        if asked != "gradient":
            return found
        if spoilt == "loss":
            return found | {"metrics": {"loss:sum": float("nan")}}
        return found | {"rows": [{"logprobs": [float("nan")] * len(each["logprobs"])} for each in found["rows"]]}

    way.strike = strike
    before = engine.checksum()
    result = engine.train(make_batch(2))
    assert "loss is nan" in result.skipped
    assert result.tokens == 0
    assert engine.checksum() == before
    way.strike = lambda _what, work: work()
    assert not engine.train(make_batch(3)).skipped
    first, _, second = way.service.runs.values()
    np.testing.assert_array_equal(first.table, second.table)
    np.testing.assert_array_equal(first.square, second.square)
    assert not way.service.saved, "what carried them over is deleted"


def test_a_step_that_is_not_finite_gives_the_run_up(bench: TrainerBench, way: RehearsalService) -> None:
    stage = bench.stage()
    engine = opened(bench, stage)
    engine.begin_stage(stage)
    way.strike = lambda asked, work: {"grad_norm": float("inf")} if asked == "step" and not work() else work()
    before = engine.checksum()
    with pytest.raises(WorkError, match="took a step that is not finite: grad_norm is inf") as error:
        engine.train(make_batch(1))
    assert error.value.field == "metrics['grad_norm']"
    assert engine.checksum() == before


def test_a_worker_without_the_package_says_the_extra_and_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tinker", None)
    with pytest.raises(ConfigError, match="tinker package is not installed here") as refused:
        sdk.connect(Access.of("", {"TINKER_API_KEY": KEY}))
    assert "pip install 'rftd[tinker]'" in str(refused.value.fix)
    assert "make engines-cpu" in str(refused.value.fix)


def test_what_the_service_lacks_is_refused_before_anything_is_asked(bench: TrainerBench) -> None:
    stage = bench.stage(kl_coef=0.01)
    bonus = {"entropy_loss": "default", "entropy_loss_args": {"entropy_coef": 0.01}}
    with pytest.raises(ConfigError, match=r"an entropy bonus of 0\.01 needs the entropy at each token") as error:
        check_objective(msgspec.structs.replace(stage, algorithm=msgspec.structs.replace(stage.algorithm, **bonus)))
    assert error.value.field == "algorithm.entropy_loss_fn_args.entropy_coef"
    check_objective(stage)


def test_while_the_service_is_away_the_engine_says_so(
    bench: TrainerBench, way: RehearsalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rftd.workers.engines.tinker.watch.CHECK_EVERY_S", 0.01)
    stage = bench.stage()
    engine = opened(bench, stage)
    engine.begin_stage(stage)
    said: list[str] = []

    def strike(_asked: str, work: Callable[[], Any]) -> Any:
        way.service.away = True
        while not engine.waits_for:
            pass
        said.append(engine.waits_for)
        way.service.away = False
        return work()

    way.strike = strike
    engine.train(make_batch(1))
    assert set(said) == {"the Tinker service"}
    assert engine.waits_for == ""
    engine.close()
    with pytest.raises((RftdError, AssertionError)):
        engine.snapshot()
