"""Classes of Trinity-RFT over a scripted engine: what they get, what becomes of it, and what is refused."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine, running_endpoint
from synthetic.worlds.trinity_classes import PAIRS

from rftd.ops.errors import ConfigError, RolloutError
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.runner import WorkflowRunner
from rftd.workers.workflows.source import SourceName, check_source
from rftd.workers.workflows.trinity.calls import RolloutThread

pytestmark = pytest.mark.anyio

HEAD = """
from trinity.common.experience import Experience
from trinity.common.workflows.workflow import WORKFLOWS, MultiTurnWorkflow, SimpleWorkflow, Task, Workflow
"""


def taskset(name: str, *, reward: str | None = None, **arguments: Any) -> TasksetSpec:
    return TasksetSpec(
        name="sums",
        path="a.jsonl",
        format=Format(prompt_key="question", response_key="answer"),
        workflow=f"theirs.py:{name}",
        workflow_args=arguments,
        reward=reward,
        repeat_times=4,
        sampling=SamplingSpec(max_tokens=64, temperature=0.75),
    )


async def rollout(
    text: str,
    name: str = "Flow",
    *,
    engine: ScriptedEngine | None = None,
    reward: str | None = None,
    rollouts: int = 1,
    model: Any = SPEC,
    **arguments: Any,
) -> RolloutResult:
    """The last of several rollouts of a class, one after the other."""
    async with running_endpoint() as endpoint:
        spec = taskset(name, reward=reward, **arguments)
        runner = WorkflowRunner(
            spec,
            model=model,
            engine=engine or ScriptedEngine(replies=("six", "seven")),
            tokenizer=ByteTokenizer(),
            endpoint=endpoint,
            sources={"theirs.py": text},
            evaluates=True,
        )
        row = {"question": "2+5=", "answer": "seven"}
        for number in range(rollouts):
            result = await runner.run(make_task(row, spec=spec, row=number), UUID(int=number))
        return result


def flow(body: str, base: str = "Workflow") -> str:
    lines = "\n        ".join(body.strip().splitlines())
    return f"{HEAD}\n\nclass Flow({base}):\n    def run(self):\n        {lines}\n"


CHAT = 'answers = self.model.chat([{"role": "user", "content": "2+5="}])'


async def test_a_class_gets_the_fields_of_its_task() -> None:
    body = f"""
task = self.task
assert (task.task_desc, task.truth, task.raw_task) == ("2+5=", "seven", {{"question": "2+5=", "answer": "seven"}})
assert (task.repeat_times, task.is_eval, task.workflow_args, task.reward_fn) == (4, True, {{"depth": 2}}, None)
assert (task.rollout_args.temperature, task.rollout_args.max_tokens, task.rollout_args.n) == (0.75, 64, 1)
assert (task.index["index"], task.format_args.prompt_key, task.workflow) == (0, "question", Flow)
{CHAT}
assert (answers[0].response_text, answers[0].info) == ("six", {{"model_version": 5}})
assert len(answers[0].logprobs) == len(answers[0].tokens) - answers[0].prompt_length
assert (self.model.model_version, self.model.model_path, self.auxiliary_models) == (5, "models/tiny", None)
answers[0].reward = 1
answers[0].metrics["depth"] = 2
return answers"""
    engine = ScriptedEngine(replies=("six",))
    result = await rollout(flow(body), engine=engine, depth=2)
    assert (result.reward, result.metrics, result.text) == (1.0, {"depth": 2.0}, "six")
    assert engine.requests[0].sampling.temperature == 0.75


async def test_settings_of_a_call_reach_the_engine() -> None:
    body = """
answers = self.model.chat([{"role": "user", "content": "a"}], n=3, temperature=0.5, top_k=7, stop="x", logprobs=0)
answers[-1].reward = 2.0
return [answers[-1]]"""
    engine = ScriptedEngine(replies=("six",))
    result = await rollout(flow(body), engine=engine)
    assert [(r.sampling.temperature, r.sampling.top_k, r.sampling.stop) for r in engine.requests] == [
        (0.5, 7, ("x",))
    ] * 3
    assert len({request.sampling.seed for request in engine.requests}) == 3
    assert result.sampling[0].temperature == 0.5


async def test_bare_texts_are_continued() -> None:
    body = """
answers = self.model.generate(["a", "b"], n=2)
assert [answer.prompt_text for answer in answers] == ["a", "a", "b", "b"]
for answer in answers:
    answer.reward = 1.0
return answers[:1]"""
    assert (await rollout(flow(body))).text == "six"


async def test_the_last_message_of_the_assistant_begins_the_answer() -> None:
    body = """
answers = self.model.chat([{"role": "user", "content": "a"}, {"role": "assistant", "content": "It is"}])
assert answers[0].prompt_text.endswith("It is")
answers[0].reward = 1.0
return answers"""
    assert (await rollout(flow(body))).text == "six"


async def test_a_conversation_is_one_sequence_of_its_drawn_tokens() -> None:
    body = """
messages = [{"role": "user", "content": "2+5="}]
for _ in range(2):
    answer = self.model.chat(messages)[0]
    messages += [{"role": "assistant", "content": answer.response_text}, {"role": "user", "content": "sure?"}]
return [self.process_messages_to_experience(messages, 0.5, {"rounds": 2, "text": "no number"})]"""
    engine = ScriptedEngine(replies=("six", "seven"))
    result = await rollout(flow(body, "MultiTurnWorkflow"), engine=engine)
    trained = result.tokens[result.prompt_tokens :][result.loss_mask == 1].tolist()
    assert trained == [token for drawn in engine.drawn for token in drawn.tokens]
    assert (result.reward, result.metrics, result.turns) == (0.5, {"rounds": 2.0}, 2)
    assert (result.logprobs[result.loss_mask == 0] == 0).all()


async def test_masks_of_the_class_leave_drawn_tokens_untrained() -> None:
    body = f"""
{CHAT}
answer = answers[0]
mask = [1] * len(answer.logprobs)
mask[0] = 0
tokens = answer.tokens.tolist() + [65, 66]
return [Experience(tokens=tokens, prompt_length=answer.prompt_length, action_mask=mask + [0, 0], reward=1.0)]"""
    result = await rollout(flow(body))
    assert result.loss_mask.tolist() == [0, 1, 1, 1, 0, 0]
    assert result.spans[-1].end == 6


async def test_a_resettable_instance_is_used_again_and_the_model_is_the_rollouts() -> None:
    text = flow(
        f"""
type(self).runs.append(id(self))
assert len(set(type(self).runs)) == 1
{CHAT}
answers[0].reward = float(self.task.task_id)
return answers"""
    ).replace(
        "    def run(self):",
        "    runs = []\n    can_reset = True\n    def reset(self, task):\n        pass\n    def run(self):",
    )
    engine = ScriptedEngine(replies=("six",))
    assert (await rollout(text, engine=engine, rollouts=3)).reward == 2.0
    assert len({request.id for request in engine.requests}) == 3


async def test_the_tasksets_reward_is_a_class_for_the_workflow() -> None:
    text = f"{HEAD}\n\nclass Flow(SimpleWorkflow):\n    pass\n"
    result = await rollout(text, reward="exact_match_reward", engine=ScriptedEngine(replies=("seven",)))
    assert (result.reward, result.metrics) == (1.0, {"accuracy": 1.0})
    with pytest.raises(RolloutError, match="name a default_reward_fn_type"):
        await rollout(text)


async def test_rewards_of_theirs_score_for_any_workflow() -> None:
    text = """
from trinity.common.rewards.reward_fn import REWARD_FUNCTIONS, RewardFn

@REWARD_FUNCTIONS.register_module("length_reward")
class LengthReward(RewardFn):
    def __init__(self, weight: float = 1.0):
        self.weight = weight

    def __call__(self, response, truth=None, prompt=None):
        return {"chars": self.weight * len(response), "right": float(response == truth)}
"""
    from rftd.workers.workflows.rewards.scorer import open_scorer

    task = make_task({"question": "2+5=", "answer": "seven"}, spec=taskset("Flow"), row=0)
    for name in ("LengthReward", "length_reward"):
        check_source(SourceName("r.py", name), text, imports=True)
        scored = await open_scorer(f"r.py:{name}", {"weight": 2.0}, sources={"r.py": text}).score("seven", task)
        assert (scored.value, scored.parts) == (11.0, {"chars": 10.0, "right": 1.0})


STEPS = """
from trinity.common.workflows.step_wise_workflow import RewardPropagationWorkflow, StepWiseRewardWorkflow


class Flow(StepWiseRewardWorkflow):
    max_step_num = 3

    def step(self, step_num):
        self.client.chat.completions.create(
            model=self.client.model_path, messages=[{"role": "user", "content": str(step_num)}]
        )
        return step_num < 1

    def reward(self, exps, step_num):
        assert len(exps) == 1
        return float(step_num)
"""


async def test_steps_over_an_openai_client_have_their_own_rewards() -> None:
    engine = ScriptedEngine(replies=("six", "seven"))
    result = await rollout(STEPS, engine=engine)
    assert [step.reward for step in result.steps] == [0.0, 1.0]
    assert result.loss_mask.sum() == sum(len(drawn.tokens) for drawn in engine.drawn)


async def test_a_prompt_that_does_not_fit_earns_nothing() -> None:
    body = f"""
{CHAT}
assert (answers[0].truncate_status, answers[0].action_mask.tolist()) == ("prompt_truncated", [False])
answers[0].reward = 1.0
return answers"""
    result = await rollout(flow(body), model=msgspec.structs.replace(SPEC, max_prompt_tokens=3))
    assert (result.reward, result.finish, result.loss_mask.tolist()) == (0.0, "prompt_truncated", [0])


REFUSED: Sequence[tuple[str, str]] = (
    ("return None", "returned a NoneType"),
    ("return []", "returned an empty list"),
    ("return ['seven']", "a list with a str"),
    (f"{CHAT}\nreturn answers", r"Experience\.reward"),
    ("return [Experience(tokens=[1, 2, 3], prompt_length=1, reward=1.0)]", r"Experience\.tokens"),
    (
        f"{CHAT}\na = answers[0]\nreturn [Experience(tokens=a.tokens, prompt_length=1, reward=1.0)]",
        r"(?s)Experience\.action_mask.*did not draw",
    ),
    (
        f"{CHAT}\na = answers[0]\n"
        "return [Experience(tokens=a.tokens, prompt_length=a.prompt_length, action_mask=[1], reward=1.0)]",
        r"(?s)Experience\.action_mask.*1 entries for 4",
    ),
    (f"{CHAT}\nanswers[0].reward = 1.0\nanswers[0].logprobs += 1\nreturn answers", r"Experience\.logprobs"),
    (f"{CHAT}\nanswers[0].reward = 1.0\nanswers[0].advantages = [1]\nreturn answers", r"Experience\.advantages"),
    (f"{CHAT}\nanswers[0].reward = 1.0\nanswers[0].metrics['a'] = 'b'\nreturn answers", r"Experience\.metrics\.a"),
    (
        'answers = self.model.chat([{"role": "user", "content": "a"}], n=2)\n'
        "for i, a in enumerate(answers):\n    a.reward, a.eid.run = 1.0, i\nreturn answers",
        r"Experience\.eid\.run",
    ),
    (
        'answers = self.model.chat([{"role": "user", "content": "a"}], n=2)\n'
        "for i, a in enumerate(answers):\n    a.reward = float(i)\nreturn answers",
        r"Experience\.eid\.step",
    ),
    ("self.model.chat([{'role': 'user', 'content': 'a'}], best_of=3)", "take no 'best_of'"),
    ("self.model.chat('text')", "the messages"),
    ("self.model.logprobs([1, 2])", r"no logprobs of a model"),
    ("self.model.convert_messages_to_experience([{'role': 'user', 'content': 'a'}])", r"Experience\.messages"),
    ("raise SystemExit(3)", "SystemExit"),
    ("1 / 0", "ZeroDivisionError"),
    ("from trinity.common.workflows.workflow import NoSuchWorkflow", "rftd has no trinity.common.workflows.workflow"),
)


@pytest.mark.parametrize(("body", "problem"), REFUSED)
async def test_what_cannot_be_trained_is_refused_by_its_field(body: str, problem: str) -> None:
    with pytest.raises(RolloutError, match=problem) as refused:
        await rollout(flow(body))
    assert "row 0" in str(refused.value)


async def test_a_cancelled_rollout_ends_its_thread_in_a_call() -> None:
    engine = ScriptedEngine(hold=True)
    running = asyncio.ensure_future(rollout(flow(f"{CHAT}\nreturn answers"), engine=engine))
    await engine.until(lambda engine: engine.running > 0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert engine.running == 0


async def test_a_call_begun_while_its_rollout_ends_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = RolloutThread()
    begin = asyncio.run_coroutine_threadsafe

    def begin_and_end(work: Any, loop: asyncio.AbstractEventLoop) -> Any:
        call = begin(work, loop)
        thread.end()
        return call

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", begin_and_end)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.to_thread(thread.wait, asyncio.Event().wait())


async def test_equal_seeds_draw_equal_tokens() -> None:
    first, second = [await rollout(flow(f"{CHAT}\nanswers[0].reward = 1.0\nreturn answers")) for _ in range(2)]
    assert np.array_equal(first.logprobs, second.logprobs)


def test_files_of_theirs_are_checked_without_running_them() -> None:
    for text, name, _ in PAIRS.values():
        check_source(SourceName("theirs.py", name), text, imports=True)
    for line, problem in (
        ("from trinity.common.workflows.envs.alfworld.utils import TEMPLATE", "imports trinity.common.workflows.envs"),
        ("from trinity.common.experience import Experiences", "imports trinity.common.experience.Experiences"),
        ("import trinity.trainer.verl", "imports trinity.trainer.verl"),
    ):
        with pytest.raises(ConfigError, match=problem) as refused:
            check_source(SourceName("theirs.py", "Flow"), f"{line}\n\n\nclass Flow:\n    pass\n")
        assert refused.value.where == "theirs.py:1"
    with pytest.raises(ConfigError, match="defines no 'Floh'"):
        check_source(SourceName("theirs.py", "Floh"), f"{HEAD}\n\nclass Flow(Workflow):\n    pass\n")
    assert not [name for name in sys.modules if name.partition(".")[0] == "trinity"]
