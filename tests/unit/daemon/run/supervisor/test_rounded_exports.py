"""Exports in fewer bits than evaluations compute in are told of when an experiment is submitted."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from synthetic.log.synthetic_run import spec_of

from rftd.daemon.run.supervisor.rounded_exports import rounding_warnings
from rftd.streams.spec.spec import ExperimentSpec


def spec_on(model: Path, *, drawn: str, save: str = "last") -> ExperimentSpec:
    """A specification with the torch engines on a model, drawing rollouts in a dtype."""
    spec = spec_of("small", 1, str(model))
    replaced = msgspec.structs.replace
    stages = tuple(
        replaced(
            stage,
            model=replaced(stage.model, path=str(model)),
            rollout=replaced(stage.rollout, engine="torch", dtype=drawn),
            trainer=replaced(stage.trainer, engine="torch", save_hf=save),
        )
        for stage in spec.stages
    )
    return replaced(spec, stages=stages)


@pytest.mark.parametrize(
    ("model", "drawn", "save", "told"),
    [
        ("bfloat16", "float32", "last", True),
        ("float16", "float32", "last", True),
        ("bfloat16", "bfloat16", "last", False),
        ("float32", "float32", "last", False),
        ("bfloat16", "float32", "never", False),
    ],
)
def test_a_rounded_export_is_told_of(tmp_path: Path, model: str, drawn: str, save: str, told: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": model}))
    warnings = rounding_warnings(spec_on(tmp_path, drawn=drawn, save=save))
    assert len(warnings) == told
    if told:
        assert f"is rounded to {model} and may answer otherwise than evaluations" in warnings[0]
        assert "rftd convert --dtype float32" in warnings[0]
