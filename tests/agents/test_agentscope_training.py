"""AgentScope's own agents train a real model through the daemon: all trained ids were drawn by the torch engine."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.daemon.third_party import install
from synthetic.daemon.torch_world import TORCH
from synthetic.worlds.agent_run import splits

from rftd.ops.ids import derive
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experience import ExperienceProduced, RunStep
from rftd.streams.events.step import StepCompleted
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.rollout.leased import rollout_ids

PYTHON = Path(__file__).parents[2] / "build" / "agents" / "agentscope" / "bin" / "python"
TASKSET = "buffer.explorer_input.taskset"
RECORDING = '''
"""The torch engine, which writes down what it draws."""
import dataclasses
import json
import os
from rftd.workers.engines.torch.rollout.arguments import ENGINE as TORCH

async def open_engine(opening):
    engine = await TORCH.open(opening)
    draw = engine.generate

    async def generate(request):
        drawn = await draw(request)
        with open(os.environ["RFTD_TEST_DRAWN"], "a") as file:
            file.write(json.dumps([str(request.id), list(drawn.tokens)]) + "\\n")
        return drawn

    engine.generate = generate
    return engine

ENGINE = dataclasses.replace(TORCH, open=open_engine)
'''
LETTERS = "def letters(response):\n    return sum(map(str.isalpha, response)) / 64\n"
LONG = (
    "model.max_model_len=8192",
    "model.max_prompt_tokens=8000",
    "model.max_response_tokens=64",
    "explorer.rollout_model={engine_type: recording_torch, engine_num: 1}",
    "explorer.runner_per_model=2",
    "explorer.max_timeout=300",
    "algorithm.repeat_times=2",
    "buffer.batch_size=1",
    "buffer.total_steps=2",
    f"{TASKSET}.format={{prompt_type: plaintext, prompt_key: question, response_key: answer}}",
    f"{TASKSET}.default_reward_fn_type=./letters.py:letters",
    f"{TASKSET}.workflow_args={{python: {PYTHON}, max_turns: 2}}",
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="make test-agents installs it"),
]


def trained(event: ExperienceProduced) -> list[int]:
    """The trained ids of every sequence, in order."""
    ids: list[int] = []
    tokens, mask = event.tokens.view(), event.loss_mask.view()
    start = answered = 0
    for step in event.steps or (RunStep(len(tokens), event.prompt_tokens, 0.0),):
        response = tokens[start + step.prompt_tokens : start + step.tokens]
        ids += response[mask[answered : answered + len(response)] == 1].tolist()
        start, answered = start + step.tokens, answered + len(response)
    return ids


@pytest.mark.parametrize("workflow", ["as_react_workflow", "agentscope_react_math_workflow"])
def test_an_agent_trains_a_real_model_on_what_it_drew(
    workflow: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("agentscope")
    make_tiny_model(folder / "model", seed=3, hidden_size=32, heads=2, max_positions=8192)
    (folder / "letters.py").write_text(LETTERS)
    drawn_at = folder / "drawn.jsonl"
    install(
        folder,
        "rftd_torch_recording",
        RECORDING,
        {"rftd.rollout_engines": {"recording_torch": "rftd_torch_recording:ENGINE"}},
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("RFTD_TEST_DRAWN", str(drawn_at))
    monkeypatch.setenv("RFTD_PASS_ENV", "PYTHONPATH RFTD_TEST_DRAWN")
    monkeypatch.syspath_prepend(str(folder))
    scene = Scene(folder)
    with scene.host:
        chosen = f"{TASKSET}.default_workflow_type={workflow}"
        name = scene.submit(EXPERIMENT, *SHORT, *TORCH, *LONG, chosen)
        page = scene.until_ended(name, timeout_s=500)
        assert page.experiment.summary.state == "completed", page.experiment.summary.reason
        report = scene.verified()
        assert report.clean, report.findings
    drawn = defaultdict[str, list[list[int]]](list)
    for line in drawn_at.read_text().splitlines():
        request, tokens = json.loads(line)
        drawn[request].append(tokens)
    produced = {event.experience: event for event in scene.events(ExperienceProduced)}
    planned = [item.experience for batch in scene.events(BatchPlanned) for item in batch.experiences]
    assert len(planned) == len(set(planned)) == 2 * 2
    assert len({produced[experience].reward for experience in planned}) > 1, "rewards that differ"
    for experience in planned:
        event = produced[experience]
        (rollout,) = rollout_ids(event.group, [event.rollout])
        answers = [drawn[str(derive(rollout, "request", number))] for number in range(event.turns)]
        assert event.turns > 1
        assert splits(trained(event), answers)
    assert len({event.checksum for event in scene.events(StepCompleted)}) == 2, "weights that change"
