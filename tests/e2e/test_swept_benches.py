"""Models measured side by side: a sweep of mode bench, which trains nothing and needs no taskset to train on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest
import yaml
from synthetic.daemon.scene import EXPERIMENT, Scene

from rftd.streams.events.step import EvalCompleted, StepCompleted

MODELS: Final = "model.model_path=./fake,./other"


@pytest.mark.e2e
def test_models_are_measured_side_by_side_in_one_table(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "--slots", "2")
    file = yaml.safe_load(EXPERIMENT)
    file |= {"mode": "bench", "stages": []}
    del file["buffer"]["explorer_input"]["taskset"]
    scene.write(yaml.safe_dump(file), "bench.yaml")
    with scene.host:
        said = scene.rftd("sweep", "bench.yaml", "-s", MODELS, "--name", "models", "--wait", "--json")
        assert said.status == 0, said
        table = scene.rftd("sweeps", "show", "models").out
    page = json.loads(said.out)
    assert page["sweep"]["states"] == {"completed": 2}
    assert [cell["settings"]["model.model_path"] for cell in page["cells"]] == ["./fake", "./other"]
    scores = [event.score for event in scene.events(EvalCompleted)]
    assert sorted(run["figures"]["held-out/held"] for run in page["runs"]) == pytest.approx(sorted(scores))
    assert table.splitlines()[1].split()[-2:] == ["held-out/held", "held-out/held/accuracy"]
    assert scene.events(StepCompleted) == []
    assert scene.verified().clean
