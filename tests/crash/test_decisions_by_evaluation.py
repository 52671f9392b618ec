"""What evaluations decide is the same whatever is killed: the best checkpoint, and where a stage ends early."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rftd.streams.events.experiment import CheckpointChosen, StageStopped

HELD = "{name: held, path: ./eval.jsonl, format: {prompt_type: raw, prompt_key: question, response_key: answer}, "
HELD += "rollout_args: {temperature: 1.0}, default_workflow_type: simple_workflow, "
HELD += "default_reward_fn_type: exact_match_reward}"
DECIDES = (
    "stages=[]",
    "buffer.total_steps=40",
    f"buffer.explorer_input.eval_tasksets=[{HELD}]",
    "explorer.eval_interval=2",
    "explorer.rollout_model.extra_engine_args={latency_s: 0.15, skill: 0.3, gain: 0.01}",
    "trainer={trainer_type: fake, save_interval: 5, max_checkpoints_to_keep: 1, max_idle_steps: 0, "
    "best_checkpoint: {keep: 2}, early_stop: {patience: 4}, engine_args: {step_s: 0.1}}",
)
REQUEST = "01933333-0000-7000-8000-000000000036"


class Decisions(NamedTuple):
    """All that was decided, and what came of it."""

    chosen: list[tuple[int, float, tuple[int, ...]]]
    stopped: list[tuple[int, int, str]]
    weights: list[str]
    kept: list[int]
    """The steps of the checkpoints that are there at the end."""
    findings: list[str]
    kills: int = 0


def decided(folder: Path, moments: int, chance: random.Random) -> Decisions:
    """The decisions of a run in which processes are killed at so many moments."""
    from synthetic.daemon.scene import EXPERIMENT, Scene
    from synthetic.deaths.killing import IN_ORDER, Killing, trained

    folder.mkdir()
    scene = Scene(folder)
    killing = Killing(scene, chance)
    with scene.host:
        name = scene.submit(EXPERIMENT, *IN_ORDER, *DECIDES, request_id=REQUEST)
        page = killing.until_ended(name, moments)
        assert page.experiment.summary.state == "completed", page.experiment.summary
        chosen: Any = scene.events(CheckpointChosen)
        shown = scene.rftd("get", name).out
        assert f"step {chosen[-1].version}: held/score {chosen[-1].value:.3f}" in shown
        assert "early: score of held is" in shown
        converted = json.loads(scene.rftd("convert", "-c", page.experiment.job_dir, "--best", "--json").out)
        assert [each["step"] for each in converted["items"]] == [chosen[-1].version]
        return Decisions(
            chosen=[(event.version, event.value, event.kept) for event in chosen],
            stopped=[(event.version, event.last_version, event.cause) for event in scene.events(StageStopped)],
            weights=trained(scene),
            kept=sorted(checkpoint.step for checkpoint in page.checkpoints),
            findings=[str(finding) for finding in scene.verified().findings],
            kills=killing.moments,
        )


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(1500)  # twenty starts of a daemon, each slow where much else runs
def test_kills_at_twenty_moments_change_no_decision(tmp_path: Path, chance: random.Random) -> None:
    untouched = decided(tmp_path / "untouched", 0, chance)
    killed = decided(tmp_path / "killed", 20, chance)
    assert (untouched.kills, killed.kills) == (0, 20)
    assert untouched.findings == killed.findings == []
    assert killed.chosen == untouched.chosen
    assert killed.stopped == untouched.stopped
    assert killed.weights == untouched.weights
    [(version, last_version, cause)] = untouched.stopped
    assert cause == "patience"
    assert version + 1 == last_version < 40, "a deterministic run trains one step past what decides, and no more"
    best, _, kept = untouched.chosen[-1]
    assert best in kept and len(kept) == 2
    assert {*kept, last_version} <= set(untouched.kept) & set(killed.kept)
