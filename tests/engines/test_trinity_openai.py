"""A class of Trinity-RFT over the clients of the real package `openai`: blocking, asynchronous and streamed."""

from __future__ import annotations

from uuid import UUID

import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine, running_endpoint

from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.workflows.runner import WorkflowRunner

pytest.importorskip("openai", reason="openai is not installed here: make test-engines")
pytestmark = pytest.mark.anyio

CLASS = """
from trinity.common.workflows.step_wise_workflow import AsyncStepWiseRewardWorkflow, StepWiseRewardWorkflow


class Flow(StepWiseRewardWorkflow):
    max_step_num = 2

    def step(self, step_num):
        assert type(self.client).__module__.startswith("openai"), type(self.client)
        messages = [{"role": "user", "content": str(step_num)}]
        answer = self.client.chat.completions.create(model=self.client.model_path, messages=messages)
        assert answer.choices[0].message.content in ("six", "seven")
        return True

    def reward(self, exps, step_num):
        assert len(exps) == 1
        return float(step_num)


class AsyncFlow(AsyncStepWiseRewardWorkflow):
    max_step_num = 2

    async def step_async(self, step_num):
        client = self.model.get_openai_async_client()
        assert type(client).__module__.startswith("openai"), type(client)
        messages = [{"role": "user", "content": str(step_num)}]
        if step_num == 0:
            await client.chat.completions.create(model=client.model_path, messages=messages)
            return True
        stream = await client.chat.completions.create(model=client.model_path, messages=messages, stream=True)
        text = "".join([part.choices[0].delta.content or "" async for part in stream if part.choices])
        assert text == "seven", text
        return True

    async def reward_async(self, exps, step_num):
        return float(step_num)
"""


@pytest.mark.parametrize("name", ["Flow", "AsyncFlow"])
async def test_answers_over_the_real_package_are_trained_with_their_rewards(name: str) -> None:
    taskset = TasksetSpec(
        name="sums",
        path="a.jsonl",
        format=Format(prompt_key="question", response_key="answer"),
        workflow=f"theirs.py:{name}",
        repeat_times=4,
        sampling=SamplingSpec(max_tokens=64, temperature=0.75),
    )
    engine = ScriptedEngine(replies=("six", "seven"))
    async with running_endpoint() as endpoint:
        runner = WorkflowRunner(
            taskset,
            model=SPEC,
            engine=engine,
            tokenizer=ByteTokenizer(),
            endpoint=endpoint,
            sources={"theirs.py": CLASS},
            evaluates=True,
        )
        row = {"question": "2+5=", "answer": "seven"}
        result = await runner.run(make_task(row, spec=taskset, row=0), UUID(int=1))
    assert [step.reward for step in result.steps] == [0.0, 1.0]
    drawn = [token for generation in engine.drawn for token in generation.tokens]
    assert result.loss_mask.sum() == len(drawn)
