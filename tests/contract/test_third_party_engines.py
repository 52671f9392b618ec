"""Engines of a third party, found by their entry points: known to the configuration, checked, opened like ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic.daemon.third_party import install

from rftd.ops.clock import ManualClock
from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, RolloutSpec, StageSpec, TrainerSpec
from rftd.workers.generation import engine_registry as rollout_engines
from rftd.workers.learning import engine_registry as trainer_engines

CODE = """
import msgspec
from rftd.workers.api import EngineOpening, RolloutEngineDefinition, TrainerEngineDefinition, TrainerOpening


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    beams: int = 1


class Opened:
    def __init__(self, opening):
        self.opening = opening


async def opened(opening):
    return Opened(opening)


ROLLOUT = RolloutEngineDefinition(arguments=Arguments, open=opened)
TRAINER = TrainerEngineDefinition(arguments=Arguments, make=Opened)
"""
POINTS = {
    "rftd.rollout_engines": {"theirs": "their_engines:ROLLOUT", "nothing": "their_engines:Opened"},
    "rftd.trainer_engines": {"theirs": "their_engines:TRAINER"},
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "their_engines", CODE, POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))


def stage_of(engine: str, **arguments: object) -> StageSpec:
    return StageSpec(
        name="rft",
        kind="both",
        total_steps=1,
        batch_size=1,
        train_batch_size=1,
        algorithm=AlgorithmSpec(kind="grpo", advantage="grpo", policy_loss="ppo"),
        model=ModelSpec(path="/model", max_model_len=64, max_prompt_tokens=32, max_response_tokens=32),
        rollout=RolloutSpec(engine=engine, threads=3, engine_args=dict(arguments)),
        trainer=TrainerSpec(engine=engine, threads=2, engine_args=dict(arguments)),
    )


@pytest.mark.anyio
@pytest.mark.usefixtures("installed")
async def test_they_are_opened_with_what_the_experiment_says(tmp_path: Path) -> None:
    stage = stage_of("theirs", beams=4)
    experiment = ExperimentSpec(project="p", name="n", job_dir=str(tmp_path), stages=(stage,), seed=7, config={})
    clock = ManualClock()
    opened = await rollout_engines.open_engine(experiment, stage, slots=5, clock=clock)
    opening = opened.opening  # type: ignore[attr-defined]
    assert (opening.model, opening.rollout) == (stage.model, stage.rollout)
    assert (opening.slots, opening.threads, opening.seed) == (5, 3, 7)
    assert opening.clock is clock
    assert opening.arguments.beams == 4
    assert tmp_path in opening.folder.parents
    made = trainer_engines.make_engine(stage.trainer).opening  # type: ignore[attr-defined]
    assert (made.trainer, made.threads, made.arguments.beams) == (stage.trainer, 2, 4)


@pytest.mark.usefixtures("installed")
def test_their_arguments_are_checked_before_anything_is_opened() -> None:
    wrong = stage_of("theirs", bems=4)
    with pytest.raises(ConfigError, match="the theirs engine does not take") as raised:
        rollout_engines.check_engine(wrong.rollout)
    assert raised.value.field == "explorer.rollout_model.extra_engine_args"
    assert "beams" in str(raised.value.fix)
    with pytest.raises(ConfigError, match="the theirs engine does not take") as raised:
        trainer_engines.check_engine(wrong.trainer)
    assert raised.value.field == "trainer.engine_args"


@pytest.mark.usefixtures("installed")
def test_what_is_no_definition_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"entry point 'nothing' of the group 'rftd.rollout_engines' is a type"):
        rollout_engines.lookup("nothing")
