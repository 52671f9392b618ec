"""The names of variables that workers are given: those that their specification and their role need, and no others'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from synthetic.daemon.scene import EXPERIMENT

from rftd.daemon.config.loading import load_text
from rftd.daemon.run.supervisor.worker_orders import variables_of
from rftd.streams.spec.engines import SERVICE, AuxiliarySpec, ReachSpec, ServingSpec
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.spec.split_submission import EXPLORER, TRAINER

JUDGE = AuxiliarySpec(name="judge", engine=SERVICE, base_url_env="JUDGE_URL", api_key_env="JUDGE_KEY")


@pytest.fixture
def spec(tmp_path: Path) -> ExperimentSpec:
    for name in ("train", "eval"):
        (tmp_path / f"{name}.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    return load_text(EXPERIMENT, "exp.yaml", environ={}, cwd=tmp_path).spec


def changed(spec: ExperimentSpec, **changes: Any) -> ExperimentSpec:
    """The last stage, changed; it explores."""
    stages = (*spec.stages[:-1], msgspec.structs.replace(spec.stages[-1], **changes))
    return msgspec.structs.replace(spec, stages=stages)


def test_an_experiment_that_names_none_is_given_none(spec: ExperimentSpec) -> None:
    assert variables_of(EXPLORER, spec) == variables_of(TRAINER, spec) == ()


def test_explorers_are_given_the_variables_of_their_models_and_their_own(spec: ExperimentSpec) -> None:
    rollout = msgspec.structs.replace(spec.stages[-1].rollout, environment=("MINE",))
    asks = changed(spec, auxiliary=(JUDGE,), rollout=rollout)
    assert variables_of(EXPLORER, asks) == ("JUDGE_KEY", "JUDGE_URL", "MINE")
    assert variables_of(TRAINER, asks) == ()


def test_the_engine_of_a_service_names_its_own(spec: ExperimentSpec) -> None:
    args = {"model_name": "m", "base_url_env": "OPENAI_BASE_URL", "api_key_env": "OPENAI_API_KEY"}
    rollout = msgspec.structs.replace(spec.stages[-1].rollout, engine=SERVICE, engine_args=args)
    assert variables_of(EXPLORER, changed(spec, rollout=rollout)) == ("OPENAI_API_KEY", "OPENAI_BASE_URL")


def test_a_server_is_given_its_key_and_tinker_both_roles(spec: ExperimentSpec) -> None:
    stage = spec.stages[-1]
    served = changed(spec, serving=ServingSpec(address="127.0.0.1", port=0))
    assert variables_of(EXPLORER, served) == ("RFTD_SERVE_KEY",)
    tinker = changed(
        spec,
        trainer=msgspec.structs.replace(stage.trainer, engine="tinker"),
        rollout=msgspec.structs.replace(stage.rollout, engine="tinker"),
    )
    for role in (EXPLORER, TRAINER):
        assert set(variables_of(role, tinker)) == {"TINKER_API_KEY", "TRINITY_API_KEY", "TINKER_BASE_URL"}


def test_others_are_given_what_they_were_granted(spec: ExperimentSpec) -> None:
    rollout = msgspec.structs.replace(spec.stages[-1].rollout, environment=("RFTD_KAFKA_PASSWORD",))
    asks = changed(spec, auxiliary=(JUDGE,), rollout=rollout, serving=ServingSpec(address="127.0.0.1", port=0))
    reach = ReachSpec(restricted=True, secrets={"JUDGE_KEY": ("judge.example.com",)})
    assert variables_of(EXPLORER, msgspec.structs.replace(asks, reach=reach)) == ("JUDGE_KEY", "RFTD_SERVE_KEY")
