"""What an experiment needs is gone: whoever needs it says what and whence, and everything can still be looked at."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.daemon.third_party import install

pytestmark = pytest.mark.e2e

PARTS = """
from rftd.workers.learning.algorithms.advantages.advantage import OneGroup

class Halved(OneGroup):
    def of_group(self, group):
        return (group.rewards - group.rewards.mean()) / 2

class Odd:
    def score(self, response, truth, task):
        return float(len(response) % 2)
"""
POINTS = {
    "rftd.advantages": {"halved": "rftd_gone_parts:Halved"},
    "rftd.rewards": {"odd": "rftd_gone_parts:Odd"},
}
WITH_PARTS = ("algorithm.advantage_fn=halved", *SHORT)
STEPS = 6


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """`mine` and `scored` ended, and `later` was drained, by a daemon that had their parts; the present one has not.

    It looks for them in the same folder, `parts`, which is called `away` now.
    """
    folder = tmp_path_factory.mktemp("gone")
    parts = folder / "parts"
    parts.mkdir()
    install(parts, "rftd_gone_parts", PARTS, POINTS, version="1.2")
    path = os.pathsep.join(filter(None, (str(parts), os.environ.get("PYTHONPATH"))))
    environ = {"PYTHONPATH": path, "RFTD_PASS_ENV": "PYTHONPATH"}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(parts))
        scene = Scene(folder, environ=environ)
        with scene.host:
            mine = scene.submit(EXPERIMENT, "name=mine", *WITH_PARTS)
            assert scene.until_ended(mine).experiment.summary.state == "completed"
            assert scene.rftd("replay", "mine", "--check").status == 0
            scored = scene.submit(
                EXPERIMENT, "name=scored", *SHORT, "buffer.explorer_input.taskset.default_reward_fn_type=odd"
            )
            assert scene.until_ended(scored).experiment.summary.state == "completed"
            later = scene.submit(EXPERIMENT, "name=later", *WITH_PARTS, "buffer.total_steps=40")
            scene.until_step(later, 3)
    parts.rename(folder / "away")
    scene = Scene(folder, environ=environ)
    with scene.host:
        yield scene


def test_replay_names_the_part_and_whence_it_came(trained: Scene) -> None:
    said = trained.rftd("replay", "mine")
    assert said.status == 2, said
    assert "the advantage function 'halved', which this experiment trains with, is not installed here" in said.err
    assert "it was rftd-gone-parts 1.2 (rftd_gone_parts:Halved) where it was trained" in said.err


def test_replay_needs_no_reward(trained: Scene) -> None:
    said = trained.rftd("replay", "scored", "--check", "--json")
    assert said.status == 0, said
    assert json.loads(said.out)["equal"] == STEPS, said


def test_an_experiment_that_was_under_way_pauses_with_the_part_named(trained: Scene) -> None:
    shown = trained.until_state("later", "paused").experiment.summary
    assert shown.code == "part_missing"
    assert shown.reason is not None
    assert "the advantage function 'halved', which this experiment trains with, is not installed here" in shown.reason
    assert "it was rftd-gone-parts 1.2 (rftd_gone_parts:Halved) where it was trained" in shown.reason
    told = trained.rftd("why", "later", "--json").out
    assert '"part_missing"' in told
    assert "'halved'" in told
    assert "put its folder on PYTHONPATH" in told
    assert trained.rftd("resume", "later").status == 5


def test_everything_can_still_be_looked_at(trained: Scene) -> None:
    got = trained.rftd("get", "mine")
    assert got.status == 0
    assert f"{STEPS} of {STEPS}" in got.out
    assert json.loads(trained.rftd("lineage", f"mine/step/{STEPS}", "--json").out)["up"]
    assert trained.rftd("why", "mine").status == 0
    assert trained.rftd("events", "mine", "-n", "5").status == 0
    assert trained.rftd("experiences", "ls", "mine", "-n", "2").status == 0
    verified = trained.rftd("verify")
    assert verified.status == 0, verified
    exported = trained.rftd("export", "mine", "--to", "mine.rftd")
    assert exported.status == 0, exported
    assert (trained.folder / "mine.rftd").is_file(), exported
    forked = trained.rftd("fork", "mine", "--at-step", "2")
    assert forked.status == 2
    assert "'halved'" in forked.err


def test_a_new_experiment_with_the_part_is_refused_with_its_field(trained: Scene, tmp_path: Path) -> None:
    trained.write(EXPERIMENT)
    said = trained.rftd("submit", "exp.yaml", "-s", "algorithm.advantage_fn=halved")
    assert said.status == 2
    assert "unknown advantage function 'halved'" in said.err


def test_it_goes_on_once_the_part_is_back(trained: Scene) -> None:
    (trained.folder / "away").rename(trained.folder / "parts")
    summary = trained.until_ended("later").experiment.summary
    assert summary.state == "completed"
    assert summary.step == 40
    assert trained.rftd("verify").status == 0
