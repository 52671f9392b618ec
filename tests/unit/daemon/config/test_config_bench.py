"""`mode: bench` and a model behind a service: what a file may say, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rftd.workers.workflows.agentscope.names import AGENTSCOPE_WORKFLOWS

HELD = (
    "buffer.explorer_input={eval_tasksets: [{name: held, path: /d/held.jsonl, default_workflow_type: math_workflow}]}"
)
SERVICE = ["mode=bench", HELD, "model={external_model: {enable: true, model_name: m-1}, max_response_tokens: 64}"]


def test_the_evaluations_of_a_file_are_all_that_is_left(load: Callable[..., Any]) -> None:
    spec = load(overrides=["mode=bench", HELD, "algorithm={algorithm_type: sft}", "buffer.total_steps=null"]).spec
    (stage,) = spec.stages
    assert (spec.half, stage.kind, stage.total_steps, stage.collect_groups) == ("both", "explore", 0, 0)
    assert (stage.taskset, stage.eval_on_startup, [each.name for each in stage.evals]) == (None, True, ["held"])


def test_of_a_service_only_names_are_kept(load: Callable[..., Any]) -> None:
    args = ["explorer.rollout_model.extra_engine_args={retries: 3}", "model.external_model.api_key_env=THEIR_KEY"]
    (stage,) = load(overrides=[*SERVICE, *args]).spec.stages
    assert (stage.rollout.engine, stage.rollout.eval_engine, stage.trainer.engine) == ("external", "shared", "fake")
    assert stage.rollout.engine_args == {
        "retries": 3,
        "model_name": "m-1",
        "base_url_env": "OPENAI_BASE_URL",
        "api_key_env": "THEIR_KEY",
    }
    # The service says how long a prompt may be.
    assert (stage.model.path, stage.model.max_model_len, stage.model.max_response_tokens) == ("", 2**20, 64)


@pytest.mark.parametrize(
    ("overrides", "field", "words"),
    [
        (["mode=both"], "model.external_model.enable", "no log-probabilities"),
        (["mode=explore", "explorer.collect_only=true"], "model.external_model.enable", "write mode: bench"),
        (["model.external_model.model_name=null"], "model.external_model.model_name", "required"),
        (["model.external_model.base_url_env=''"], "model.external_model.base_url_env", "required"),
        (["model.max_response_tokens=null"], "model.max_response_tokens", "required"),
        (
            ["explorer.rollout_model.engine_type=torch"],
            "explorer.rollout_model.engine_type",
            "model.external_model is enabled",
        ),
        (["explorer.rollout_model.extra_engine_args={retires: 3}"], "extra_engine_args.retires", "retries"),
        (
            ["model={external_model: {}}", "explorer.rollout_model.engine_type=external"],
            "engine_type",
            "does not name a service",
        ),
        (["buffer.explorer_input={}"], "eval_tasksets", "are required"),
        (
            [HELD.replace("math_workflow", "math_workflow, format: {prompt_type: raw}")],
            "eval_tasksets[0].format.prompt_type",
            "accepts only messages",
        ),
        (
            [HELD.replace("math_workflow", "math_workflow, format: {reply_prefix: So}")],
            "eval_tasksets[0].format.reply_prefix",
            "leave it out",
        ),
        (
            [HELD.replace("math_workflow", "agent_program_workflow, workflow_args: {agent: a}")],
            "eval_tasksets[0].default_workflow_type",
            "model.chat",
        ),
    ],
)
def test_what_cannot_be_measured_is_named(
    errors: Callable[..., list[str]], overrides: list[str], field: str, words: str
) -> None:
    found = errors(overrides=[*SERVICE, *overrides])
    assert any(f"{field}: " in text and words in text for text in found), found


@pytest.mark.parametrize("workflow", sorted(AGENTSCOPE_WORKFLOWS))
def test_functions_and_agents_of_agentscope_are_refused_for_a_service(
    errors: Callable[..., list[str]], workflow: str
) -> None:
    refused = errors(overrides=[*SERVICE, HELD.replace("math_workflow", workflow)])
    assert any("eval_tasksets[0].default_workflow_type: " in text and "built-in engine" in text for text in refused)
