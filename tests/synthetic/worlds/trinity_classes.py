"""Five workflow classes in Trinity-RFT's API, unchanged by rftd, each beside a workflow of rftd that does the same."""

from __future__ import annotations

from typing import Final

SINGLE = """
from typing import List, Optional

import openai
from trinity.common.experience import Experience
from trinity.common.models.model import ModelWrapper
from trinity.common.workflows.workflow import WORKFLOWS, Task, Workflow


@WORKFLOWS.register_module("example_workflow")
class ExampleWorkflow(Workflow):
    def __init__(self, task: Task, model: ModelWrapper, auxiliary_models: Optional[List[openai.OpenAI]] = None):
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.reset(task)

    def resettable(self):
        return True

    def reset(self, task: Task):
        self.question = task.raw_task.get("question")
        self.answer = task.raw_task.get("answer")
        self.rollout_args = task.rollout_args

    def calculate_reward(self, response: str, truth: str) -> float:
        return 1.0 if response.strip() == truth else -0.25 * len(response)

    def run(self) -> List[Experience]:
        responses = self.model.chat(
            [{"role": "user", "content": self.question}],
            n=self.rollout_args.n,
            temperature=self.rollout_args.temperature,
        )
        experiences = []
        for response in responses:
            experiences.append(
                Experience(
                    tokens=response.tokens,
                    prompt_length=response.prompt_length,
                    reward=self.calculate_reward(response.response_text, self.answer),
                    logprobs=response.logprobs,
                )
            )
        return experiences
"""
REPEATABLE = """
from trinity.common.workflows import WORKFLOWS, SimpleWorkflow, Task


@WORKFLOWS.register_module("repeated_workflow")
class RepeatedWorkflow(SimpleWorkflow):
    can_reset = True
    can_repeat = True

    def reset(self, task: Task):
        super().reset(task)
        self.raw_task["seen"] = self.raw_task.get("seen", 0) + 1
        assert self.raw_task["seen"] == 1, "the row is this run's own"

    def run(self):
        assert self.rollout_args["n"] == self.repeat_times
        responses = super().run()
        for response in responses:
            response.reward += 0.5 * len(response.response_text)
        return responses
"""
MULTI_TURN = """
from trinity.common.workflows.workflow import WORKFLOWS, MultiTurnWorkflow, Task


@WORKFLOWS.register_module("retry_workflow")
class RetryWorkflow(MultiTurnWorkflow):
    def __init__(self, *, task: Task, model, auxiliary_models=None):
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.tries = task.workflow_args.get("tries", 2)

    def run(self):
        experiences = []
        for _ in range(self.repeat_times):
            messages = [{"role": "user", "content": self.task.task_desc}]
            for number in range(self.tries):
                answer = self.model.chat(messages, n=1)[0].response_text
                messages.append({"role": "assistant", "content": answer})
                if number + 1 < self.tries:
                    messages.append({"role": "user", "content": "again"})
            reward = 0.125 * len(answer)
            experiences.append(
                self.process_messages_to_experience(messages, reward, {"tries": self.tries, "note": "free"})
            )
        return experiences
"""
ASYNC = """
import asyncio

from trinity.common.workflows.workflow import WORKFLOWS, Workflow
from trinity.utils.log import get_logger


@WORKFLOWS.register_module("async_workflow")
class AsyncWorkflow(Workflow):
    is_async: bool = True

    async def run_async(self):
        get_logger(__name__).debug("version %s of %s", self.model.model_version, self.model.model_path)
        responses = await self.model.chat_async([{"role": "user", "content": self.task.raw_task["question"]}])
        await asyncio.sleep(0)
        for response in responses:
            response.reward = float(len(response.response_text))
            response.metrics["chars"] = len(response.response_text)
        return responses
"""
AUXILIARY = """
from typing import List

import openai
from trinity.common.workflows.workflow import WORKFLOWS, Workflow


@WORKFLOWS.register_module("judged_workflow")
class JudgedWorkflow(Workflow):
    def judged(self, text: str, judge: openai.OpenAI) -> float:
        completion = judge.chat.completions.create(
            model=judge.model_path,
            messages=[{"role": "user", "content": text}],
            stream=False,
            temperature=0.0,
            max_tokens=4,
        )
        return float((len(text) + sum(map(ord, completion.choices[0].message.content))) % 7)

    def run(self):
        responses = self.model.chat([{"role": "user", "content": self.task.raw_task["question"]}])
        for response in responses:
            response.reward = self.judged(response.response_text, self.auxiliary_models[0])
        return responses
"""

NATIVE = """
from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.api import Message, RewardResult, Trajectory


def chatted(score):
    async def run(task, model, reward):
        trajectory = Trajectory()
        trajectory.add(await model.chat([Message("user", task.prompt)]))
        return trajectory.result(RewardResult(value=score(trajectory.turns[-1].text, task)))

    return run


async def single(task, model, reward):
    right = lambda text, task: 1.0 if text.strip() == task.truth else -0.25 * len(text)
    return await chatted(right)(task, model, reward)


async def repeated(task, model, reward):
    response = await model.chat([Message("user", task.prompt)])
    trajectory = Trajectory()
    trajectory.add(response)
    scored = await reward.score(response.text, task, turns=trajectory.turns)
    value = scored.value + 0.5 * len(response.text)
    return trajectory.result(RewardResult(value=value, parts=scored.parts))


async def retried(task, model, reward):
    trajectory = Trajectory()
    messages = [Message("user", task.prompt)]
    response = await model.chat(messages)
    trajectory.add(response)
    response = await model.chat([*messages, Message("assistant", response.text), Message("user", "again")])
    trajectory.add(response)
    return trajectory.result(RewardResult(value=0.125 * len(response.text), parts={"tries": 2.0}))


async def awaited(task, model, reward):
    return await chatted(lambda text, task: float(len(text)))(task, model, reward)


async def judged(task, model, reward):
    trajectory = Trajectory()
    trajectory.add(await model.chat([Message("user", task.prompt)]))
    sampling = SamplingSpec(temperature=0.0, max_tokens=4)
    judge = model.auxiliary_models[0]
    answer = await judge.chat([Message("user", trajectory.turns[-1].text)], sampling=sampling)
    asked = len(trajectory.turns[-1].text) + sum(map(ord, answer.text))
    return trajectory.result(RewardResult(value=float(asked % 7)))
"""

PAIRS: Final = {
    "single": (SINGLE, "example_workflow", "single"),
    "repeatable": (REPEATABLE, "RepeatedWorkflow", "repeated"),
    "multi-turn": (MULTI_TURN, "retry_workflow", "retried"),
    "async": (ASYNC, "AsyncWorkflow", "awaited"),
    "auxiliary": (AUXILIARY, "judged_workflow", "judged"),
}
"""By kind: the file, the class or its registered name, and the function of `NATIVE`."""
