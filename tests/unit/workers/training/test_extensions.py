"""Third parties' parts in the recorded environment: whence they come, and that they are gone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from synthetic.daemon.third_party import install

from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.training.extensions import check_extensions, extensions_of

PART = "advantage function 'theirs'"


@pytest.fixture
def spec(make_stage: Callable[..., StageSpec]) -> ExperimentSpec:
    stage = make_stage()
    theirs = msgspec.structs.replace(stage, algorithm=msgspec.structs.replace(stage.algorithm, advantage="theirs"))
    return ExperimentSpec(project="p", name="n", job_dir="/nowhere", stages=(stage, theirs), config={})


def test_only_third_parties_parts_are_recorded(
    spec: ExperimentSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {"rftd.advantages": {"theirs": "no_such_module:Theirs"}}
    install(tmp_path, "their_package", None, points, version="1.2")
    monkeypatch.syspath_prepend(tmp_path)
    assert extensions_of(spec) == {PART: "their-package 1.2 (no_such_module:Theirs)"}
    check_extensions(spec, {})
    assert extensions_of(msgspec.structs.replace(spec, stages=spec.stages[:1])) == {}


def test_a_part_that_is_gone_is_named(spec: ExperimentSpec) -> None:
    assert extensions_of(spec) == {PART: "not installed"}
    with pytest.raises(ConfigError, match=f"the {PART}, which this experiment trains with, is not installed here\n"):
        check_extensions(spec, {})
    with pytest.raises(ConfigError, match=re.escape("it was theirs 2 (m:T) where it was trained")):
        check_extensions(spec, {PART: "theirs 2 (m:T)"})
