"""The alignment guide's two examples come out as the guide's own results, field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rftd.daemon.config.loading import load_text
from rftd.daemon.config.normalise import normalise
from rftd.daemon.config.verl.importing import ImportedExperiment, import_file
from rftd.daemon.config.yaml_source import parse_yaml
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.devices.host import ANY_HOST

GUIDE = Path(__file__).parents[4] / "golden" / "verl"
WORKFLOW = "buffer.explorer_input.default_workflow_type"
DIFFERENCES = {
    # The guide's file names no workflow. veRL chooses a reward by each row's `data_source`; a workflow stands for it.
    ("ppo", WORKFLOW): (None, "math_workflow"),
    ("grpo", WORKFLOW): (None, "math_workflow"),
    # The guide's file trains on a default reward beside the reward model, which nothing of it asks.
    ("ppo", "buffer.explorer_input.default_reward_fn_type"): (None, "???"),
    # The guide keeps veRL's numbers, which count batches of four steps here.
    **{(name, "trainer.save_interval"): (20, 80) for name in ("ppo", "grpo")},
    **{(name, "explorer.eval_interval"): (5, 20) for name in ("ppo", "grpo")},
    # veRL has one temperature for all tasksets, and 1.0 is its default and ours.
    ("ppo", "buffer.explorer_input.tasksets[1].rollout_args.temperature"): (1.0, None),
}
"""Field of an example: the guide's value and ours."""


def leaves(node: Any, above: str = "") -> dict[str, Any]:
    if isinstance(node, dict):
        return {path: v for key, value in node.items() for path, v in leaves(value, f"{above}.{key}").items()}
    if isinstance(node, list):
        return {path: v for at, value in enumerate(node) for path, v in leaves(value, f"{above}[{at}]").items()}
    return {above.removeprefix("."): node}


def fields_of(text: str) -> dict[str, Any]:
    """The fields by their current names."""
    tree, source, issues = parse_yaml(text, "example")
    assert issues == []
    tree, issues, _ = normalise(tree, source)
    assert issues == []
    return leaves(tree)


def imported(name: str, sync_offset: int = 1) -> ImportedExperiment:
    return import_file(GUIDE / f"{name}.sh", sync_offset=sync_offset)


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_an_example_becomes_the_guides_own_result(name: str) -> None:
    ours = fields_of(imported(name).text)
    guides = fields_of((GUIDE / f"{name}.yaml").read_text())
    differing = {
        (name, path): (guides.get(path), ours.get(path))
        for path in {*ours, *guides}
        if ours.get(path) != guides.get(path)
    }
    assert differing == {key: values for key, values in DIFFERENCES.items() if key[0] == name}


def test_without_an_option_explorers_are_on_policy_as_the_guides_text_says() -> None:
    assert fields_of(imported("ppo", 0).text)["synchronizer.sync_offset"] == 0


def stage_of(name: str) -> StageSpec:
    environ = {"HOME": "/home/me"}
    # The reward that asks the reward model is a gap, which somebody fills.
    filled = imported(name).text.replace("default_reward_fn_type: ???", "default_reward_fn_type: llm_judge_reward")
    submission = load_text(filled, f"{name}.yaml", environ=environ, cwd=Path("/w"), host=ANY_HOST)
    (stage,) = submission.spec.stages
    return stage


def test_the_results_pass_the_check() -> None:
    stage = stage_of("grpo")
    assert stage.algorithm.repeat_times == 8
    assert stage.batch_size * 8 == stage.train_batch_size == 2048
    assert stage.taskset is not None
    assert stage.taskset.path == "/home/me/data/gsm8k"
    ppo = stage_of("ppo")
    assert [(each.name, each.path) for each in tasksets_of(ppo)] == [
        ("gsm8k", "/home/me/data/gsm8k"),
        ("math", "/home/me/data/math"),
    ]
    assert [each.name for each in ppo.evals] == ["gsm8k_eval", "math_eval"]
    assert (ppo.algorithm.kind, ppo.trainer.critic_path) == ("ppo", "/home/me/models/Qwen2-7B-Instruct")


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_every_line_of_the_script_has_its_line_of_the_report(name: str) -> None:
    script = (GUIDE / f"{name}.sh").read_text().split("\n")
    first = next(at for at, line in enumerate(script, start=1) if "main_ppo" in line)
    keys = {at for at, line in enumerate(script, start=1) if at > first and "=" in line}
    answers = [line for line in imported(name).lines if line.outcome != "needs a person" or "a gap" in line.text]
    said = {line.place.line for line in answers if line.place}
    assert said == keys
    assert not [line for line in imported(name).lines if line.outcome == "unknown"]


def test_comments_name_the_origin() -> None:
    text = imported("ppo").text
    assert "lr: 1.0e-6  # actor_rollout_ref.actor.optim.lr\n" in text
    assert "advantage_fn: ppo  # algorithm.adv_estimator=gae\n" in text
