"""An agent program through the daemon: what it was told is what is trained, also where its explorer is killed."""

from __future__ import annotations

import json
import os
from collections import defaultdict

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.daemon.third_party import install

from rftd.ops.ids import derive
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experience import ExperienceProduced
from rftd.workers.datasets.byte_tokenizer import EOS, ByteTokenizer
from rftd.workers.rollout.leased import rollout_ids

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PARTS = '''
"""An engine that calls a tool before it answers, and an agent that writes down what it was told."""
import json
import os
import httpx
from rftd.workers.generation.engine_definition import RolloutEngineDefinition
from rftd.workers.engines.fake.rollout import FakeArgs, FakeRolloutEngine

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}

class Calling(FakeRolloutEngine):
    def _answer(self, request):
        asked = self._tokenizer.decode(request.prompt)
        if "tool: " in asked.replace("tools: ", ""):
            return super()._answer(request)
        return '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'

async def open_engine(opening):
    return Calling(opening.arguments, opening.clock)

ENGINE = RolloutEngineDefinition(arguments=FakeArgs, open=open_engine)

async def solve(task, *, base_url, api_key):
    messages = [{"role": "user", "content": task.prompt}]
    told = []
    headers = {"Authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(base_url=base_url, headers=headers, timeout=60, trust_env=False) as client:
        for number in range(3):
            answer = await client.post("/chat/completions", json={"messages": messages, "tools": [ADD]})
            answer.raise_for_status()
            message = answer.json()["choices"][0]["message"]
            told.append([answer.json()["id"], message])
            messages.append(message)
            if message.get("tool_calls"):
                called = message["tool_calls"][0]["id"]
                messages.append({"role": "tool", "tool_call_id": called, "content": "7"})
            else:
                messages.append({"role": "user", "content": "Are you sure?"})
    with open(os.environ["RFTD_TEST_TOLD"], "a") as file:
        file.write(json.dumps(told) + "\\n")
    return float(message["content"] in "01234")
'''
POINTS = {
    "rftd.agents": {"telling": "rftd_telling:solve"},
    "rftd.rollout_engines": {"calling": "rftd_telling:ENGINE"},
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
TASKSET = "buffer.explorer_input.taskset"
OVERRIDES = (
    *SHORT,
    "model.max_model_len=1024",
    "model.max_prompt_tokens=900",
    f"{TASKSET}.default_workflow_type=agent_program_workflow",
    f"{TASKSET}.workflow_args.agent=telling",
    "explorer.rollout_model.engine_type=calling",
)


def test_a_run_of_agents_trains_what_they_were_told_through_the_death_of_an_explorer(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("agents")
    install(folder, "rftd_telling", PARTS, POINTS)
    told_at = folder / "told.jsonl"
    told_at.touch()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("RFTD_PASS_ENV", "PYTHONPATH RFTD_TEST_TOLD")
    monkeypatch.setenv("RFTD_TEST_TOLD", str(told_at))
    monkeypatch.syspath_prepend(str(folder))
    scene = Scene(folder)
    with scene.host:
        name = scene.submit(EXPERIMENT, *OVERRIDES)
        scene.until_step(name, 1)
        # There are sixteen conversations under way at any moment.
        assert scene.kill("explorer", name)
        page = scene.until_ended(name)
        assert page.experiment.summary.state == "completed", page.experiment.summary.reason
        report = scene.verified()
        assert report.clean, report.findings

    told = defaultdict[str, list[list[str]]](list)
    for line in told_at.read_text().splitlines():
        conversation = json.loads(line)
        texts = [CALL if message.get("tool_calls") else message["content"] for _, message in conversation]
        told[conversation[0][0]].append(texts)
    tokenizer = ByteTokenizer()
    produced = {event.experience: event for event in scene.events(ExperienceProduced)}
    planned = [each for batch in scene.events(BatchPlanned) for each in batch.experiences]
    assert len(planned) == len(set(planned)) == 6 * 4 * 4
    for event in produced.values():
        assert not event.steps, "a conversation is one sequence"
        (rollout,) = rollout_ids(event.group, [event.rollout])
        drawn = event.tokens.view()[event.prompt_tokens :][event.loss_mask.view() == 1].tolist()
        # A rollout that was begun again asks under the same ids, and may be answered by newer weights.
        begun = told[f"chatcmpl-{derive(rollout, 'request', 0).hex}"]
        assert drawn in [[id for text in texts for id in (*tokenizer.encode(text), EOS)] for texts in begun]
        assert event.logprobs.view()[event.loss_mask.view() == 1].tolist() == [-0.5] * len(drawn)
