"""The workflows' prompts, and errors of workflows and rewards: named by the task's row, never swallowed."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from synthetic.daemon.third_party import install

from rftd.ops.errors import ConfigError, RolloutError
from rftd.streams.events.experience import Span
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import ModelSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import Task, make_task
from rftd.workers.generation.engine import EngineStats, Generation, GenerationRequest
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.rewards.scorer import Scorer
from rftd.workers.workflows.runner import SILENT_ROLLOUTS, WorkflowRunner, check_names

pytestmark = pytest.mark.anyio
MODEL = ModelSpec(path="m", max_model_len=2048, max_prompt_tokens=1500, max_response_tokens=500)
PLUGIN = """
import asyncio
import builtins

from rftd.workers.workflows.trajectory import Trajectory

class Raises:
    default_reward = "exact_match_reward"
    async def run(self, task, model, reward):
        raise KeyError("no such tool")

class Exits(Raises):
    async def run(self, task, model, reward):
        raise SystemExit(3)

class ExitsBeside(Raises):
    def __init__(self, error="SystemExit", way="wait_for"):
        self.error, self.way = getattr(builtins, error), way
    async def tool(self):
        await asyncio.sleep(0)
        raise self.error(3)
    def leave(self, *_):
        raise self.error(3)
    async def run(self, task, model, reward):
        if self.way == "wait_for":
            await asyncio.wait_for(self.tool(), 30)
        if self.way == "gather":
            await asyncio.gather(self.tool(), self.tool())
        if self.way == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.wait_for(self.tool(), 30))
        if self.way in ("call_soon", "call_later", "done"):
            loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
            if self.way == "call_soon":
                loop.call_soon(self.leave)
            if self.way == "call_later":
                loop.call_later(0.01, self.leave)
            if self.way == "done":
                future.add_done_callback(self.leave)
                future.set_result(None)
            await asyncio.sleep(30)
        if self.way == "late":
            asyncio.get_running_loop().call_later(0.01, self.leave)
        else:
            started = asyncio.create_task(self.tool())
            await asyncio.wait([started])
            started.exception()
        trajectory = Trajectory()
        trajectory.add(await model.chat(task.messages))
        return trajectory.result(await reward.score("42", task, turns=trajectory.turns))

class Cancels(Raises):
    async def run(self, task, model, reward):
        raise asyncio.CancelledError("a future that it asked")

class Closes(Raises):
    async def run(self, task, model, reward):
        raise GeneratorExit

class Groups(Raises):
    async def run(self, task, model, reward):
        raise ExceptionGroup("several", [ExceptionGroup("inner", [ValueError("the first cause")])])

class Nothing(Raises):
    async def run(self, task, model, reward):
        return None

class Gives:
    def __init__(self, value=None, fail=False):
        self.value, self.fail = value, fail
    def score(self, response, truth, task):
        if self.fail is True:
            raise ZeroDivisionError("no sandbox")
        if self.fail:
            raise getattr(asyncio, self.fail, None) or getattr(builtins, self.fail)
        return self.value

class Overlong:
    def score(self, response, truth, task, rollout):
        over = rollout.response_tokens - 1
        return {"over": -over / 2, "cut": float(rollout.finish == "length"), "turns": float(len(rollout.turns))}

class Talks(Raises):
    roles = ("solver", "critic")
    async def run(self, task, model, reward):
        trajectory = Trajectory()
        trajectory.add(await model.chat(task.messages))
        return trajectory.result(await reward.score("42", task, turns=trajectory.turns), role="solver")

class TextAlone(Raises):
    async def run(self, task, model, reward):
        return await reward.score("42", task)

class Twice(Raises):
    async def run(self, task, model, reward):
        trajectory = Trajectory()
        trajectory.add(await model.chat(task.messages))
        trajectory.add(await model.generate([*trajectory.tokens, 65]))
        return trajectory.result(await reward.score("42", task, turns=trajectory.turns))
"""
WORKFLOWS = ("raises", "exits", "cancels", "closes", "groups", "nothing", "twice", "talks")
POINTS = {
    "rftd.workflows": {
        **{name: f"rftd_test_plugin:{name.title()}" for name in WORKFLOWS},
        "exits_beside": "rftd_test_plugin:ExitsBeside",
        "text_alone": "rftd_test_plugin:TextAlone",
    },
    "rftd.rewards": {"gives": "rftd_test_plugin:Gives", "overlong": "rftd_test_plugin:Overlong"},
}


class OneAnswer:
    """A rollout engine that answers 42, and keeps the prompts."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    @property
    def version(self) -> tuple[int, int]:
        return (0, 0)

    async def generate(self, request: GenerationRequest) -> Generation:
        self.prompts.append(bytes(request.prompt).decode())
        return Generation(tokens=tuple(b"42"), logprobs=(-1.0, -1.0), spans=(Span(0, 0, 0, 2),), finish="stop")

    async def load_weights(self, weights: WeightsRef) -> str:
        return weights.checksum

    def stats(self) -> EngineStats:
        return EngineStats(tokens_total=0, requests_total=0, running=0, waiting=0)

    async def close(self) -> None:
        return None


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third party's workflows and rewards on the path."""
    install(tmp_path, "rftd_test_plugin", PLUGIN, POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))


def taskset(workflow: str = "simple_workflow", reward: str | None = "exact_match_reward", **form: Any) -> TasksetSpec:
    arguments = {name: form.pop(name, {}) for name in ("workflow_args", "reward_args")}
    return TasksetSpec(name="t", path="p", workflow=workflow, reward=reward, **arguments, format=Format(**form))


async def run(spec: TasksetSpec, engine: OneAnswer | None = None, **columns: str) -> RolloutResult:
    made = make_task({"prompt": "6*7=", "response": "42", **columns}, spec=spec, row=4)
    runner = WorkflowRunner(spec, model=MODEL, engine=engine or OneAnswer(), tokenizer=ByteTokenizer())
    return await runner.run(made, UUID(int=1))


@pytest.mark.parametrize(
    ("workflow", "reward", "form", "prompt"),
    [
        ("simple_workflow", "exact_match_reward", {"prompt_type": "raw"}, "6*7="),
        (
            "simple_workflow",
            "exact_match_reward",
            {"prompt_type": "raw", "system_prompt": "Count.", "reply_prefix": " "},
            "Count.\n6*7= ",
        ),
        ("simple_workflow", "exact_match_reward", {}, "user: 6*7=\nassistant: "),
        ("simple_workflow", "exact_match_reward", {"system_prompt": "S"}, "system: S\nuser: 6*7=\nassistant: "),
        ("math_workflow", "exact_match_reward", {"prompt_type": "raw"}, "user: 6*7=\nassistant: "),
        ("math_workflow", None, {"system_prompt": "S", "reply_prefix": "<t>"}, "system: S\nuser: 6*7=\nassistant: <t>"),
        (
            "math_boxed_workflow",
            None,
            {"workflow_args": {"use_base": True}, "system_prompt": "S", "reply_prefix": "<t>"},
            "System:S\nUser:\n6*7=\nAssistant:\n<t>",
        ),
    ],
)
async def test_prompts(workflow: str, reward: str | None, form: dict[str, Any], prompt: str) -> None:
    engine = OneAnswer()
    result = await run(taskset(workflow, reward, **form), engine)
    assert engine.prompts == [prompt]
    assert bytes(int(token) for token in result.tokens).decode() == prompt + "42"
    assert result.finish == "stop"


@pytest.mark.parametrize(("workflow", "sought"), [("math_workflow", "<answer>"), ("math_boxed_workflow", "\\boxed{}")])
async def test_mathematics_asks_for_what_its_own_reward_scores(workflow: str, sought: str) -> None:
    engine = OneAnswer()
    result = await run(taskset(workflow, None), engine)
    assert engine.prompts[0].startswith("system: ")
    assert sought in engine.prompts[0]
    assert set(result.metrics) == {"accuracy", "format_score"}
    assert result.reward == pytest.approx({"math_workflow": 0.9, "math_boxed_workflow": 0.0}[workflow])


async def test_the_given_beginning_of_a_reply_is_scored_and_not_trained() -> None:
    result = await run(taskset(prompt_type="plaintext", reply_prefix="The answer is "), response="The answer is 42")
    assert (result.reward, result.text, len(result.loss_mask)) == (1.0, "42", 2)


async def test_a_row_may_name_its_own_workflow_and_reward() -> None:
    spec = taskset(workflow_key="wf", reward_fn_key="rw")
    engine = OneAnswer()
    result = await run(spec, engine, wf="math_workflow", rw="math_reward")
    assert set(result.metrics) == {"accuracy", "format_score"}
    assert "<answer>" in engine.prompts[0]
    with pytest.raises(RolloutError, match=r"(?s)unknown reward 'nope'.*taskset 't' row 4"):
        await run(spec, rw="nope")


async def test_names_are_checked_before_anything_runs() -> None:
    check_names(taskset())
    with pytest.raises(ConfigError, match="did you mean 'math_workflow'"):
        check_names(taskset("maths_workflow"))
    with pytest.raises(ConfigError, match="unknown reward"):
        check_names(taskset(reward="nope"))
    with pytest.raises(ConfigError, match="has no default reward"):
        check_names(taskset(reward=None))
    check_names(taskset("math_workflow", None))
    with pytest.raises(ConfigError, match="has no default reward, and taskset 't' names none"):
        await run(taskset(reward=None))


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("workflow", "message"),
    [
        ("raises", r"(?s)workflow 'raises' raised KeyError: 'no such tool'.*taskset 't' row 4"),
        ("exits", r"(?s)workflow 'exits' raised SystemExit: 3.*taskset 't' row 4"),
        ("cancels", r"(?s)workflow 'cancels' raised CancelledError: a future that it asked.*taskset 't' row 4"),
        ("closes", r"(?s)workflow 'closes' raised GeneratorExit.*taskset 't' row 4"),
        ("groups", r"(?s)workflow 'groups' raised ValueError: the first cause.*row 4"),
        ("nothing", r"(?s)returned a NoneType, not a RolloutResult.*row 4"),
    ],
)
async def test_a_workflow_that_fails_is_named_with_its_row(workflow: str, message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        await run(taskset(workflow, None))


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("error", ["SystemExit", "KeyboardInterrupt"])
@pytest.mark.parametrize("way", ["wait_for", "gather", "group", "call_soon", "call_later", "done"])
async def test_an_exit_of_a_task_that_a_workflow_started_ends_its_rollout_alone(error: str, way: str) -> None:
    beside = asyncio.ensure_future(asyncio.sleep(0.05, "another rollout"))
    with pytest.raises(RolloutError, match=rf"(?s)workflow 'exits_beside' raised {error}: 3.*taskset 't' row 4"):
        await run(taskset("exits_beside", "exact_match_reward", workflow_args={"error": error, "way": way}))
    assert await beside == "another rollout"


@pytest.mark.usefixtures("plugin")
async def test_an_exit_of_a_callback_after_its_rollout_ends_nothing() -> None:
    result = await run(taskset("exits_beside", "exact_match_reward", workflow_args={"way": "late"}))
    assert result.reward == 1.0
    assert await asyncio.sleep(0.05, "another rollout") == "another rollout"


@pytest.mark.usefixtures("plugin")
async def test_an_exit_of_a_task_that_nobody_awaits_costs_the_rollout_nothing() -> None:
    result = await run(taskset("exits_beside", "exact_match_reward", workflow_args={"way": "beside"}))
    assert result.reward == 1.0


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fail": True}, "reward 'gives' raised ZeroDivisionError: no sandbox"),
        ({"value": None}, "returned None, which is not a finite number"),
        ({"value": "1.0"}, "returned '1.0', which is not a finite number"),
        ({"value": float("nan")}, "returned nan, which is not a finite number"),
        ({"value": {"a": 1.0, "b": float("inf")}}, "returned b=inf, which is not a finite number"),
        ({"value": {"a": [1]}}, r"returned a=\[1\], which is not a finite number"),
        ({"value": {}}, "returned an empty mapping"),
        ({"value": 1e300}, r"returned 1e\+300, beyond 1e\+30"),
        ({"value": {"a": -1e30, "b": -1e30}}, r"returned -2e\+30, beyond 1e\+30"),
        *(
            ({"fail": name}, rf"reward 'gives' raised (RuntimeError: )?{name}")
            for name in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "CancelledError", "StopIteration")
        ),
    ],
)
async def test_a_reward_that_fails_is_named_with_its_row(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RolloutError, match=f"(?s){message}.*taskset 't' row 4"):
        await run(taskset(reward="gives", reward_args=arguments))


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("value", "reward", "parts"),
    [(2, 2.0, {}), (True, 1.0, {}), ({"a": 1, "b": -0.25}, 0.75, {"a": 1.0, "b": -0.25})],
)
async def test_a_reward_may_give_a_number_or_named_summands(value: Any, reward: float, parts: dict[str, float]) -> None:
    result = await run(taskset(reward="gives", reward_args={"value": value}))
    assert (result.reward, result.metrics) == (reward, parts)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(("workflow", "turns"), [("simple_workflow", 1.0), ("math_workflow", 1.0), ("twice", 2.0)])
async def test_a_reward_that_asks_for_it_sees_the_rollout(workflow: str, turns: float) -> None:
    result = await run(taskset(workflow, reward="overlong"))
    assert result.metrics == {"over": -0.5, "cut": 0.0, "turns": turns}


@pytest.mark.usefixtures("plugin")
async def test_a_reward_that_looks_at_the_rollout_is_not_given_the_text_alone() -> None:
    with pytest.raises(RolloutError, match="'overlong' needs the rollout") as caught:
        await run(taskset("text_alone", reward="overlong"))
    assert "turns=trajectory.turns" in str(caught.value.fix)


async def test_a_reward_whose_view_of_the_rollout_has_a_default_takes_the_text_alone() -> None:
    class MayLook:
        def score(self, response: str, truth: str, task: Task, rollout: object = None) -> float:
            return 0.0 if rollout is None else 1.0

    task = make_task({"prompt": "p", "response": "r"}, spec=taskset(), row=4)
    assert (await Scorer("may_look", MayLook(), on_thread=False).score("x", task)).value == 0.0


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr)
async def test_a_reward_that_asks_fails_at_once_whatever_it_raises(error: BaseException) -> None:
    class Asks:
        async def score(self, response: str, truth: str, task: Task) -> float:
            raise error

    task = make_task({"prompt": "p", "response": "r"}, spec=taskset(), row=4)
    with pytest.raises(RolloutError, match=type(error).__name__):
        await Scorer("asks", Asks(), on_thread=False).score("x", task)


async def test_a_reward_that_blocks_holds_up_neither_the_loop_nor_a_cancellation() -> None:
    release, entered = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Blocks:
        def score(self, response: str, truth: str, task: Task) -> RewardResult:
            loop.call_soon_threadsafe(entered.set)
            release.wait(30)
            raise StopIteration

    task = make_task({"prompt": "p", "response": "r"}, spec=taskset(), row=4)
    scorer = Scorer("blocks", Blocks(), on_thread=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as scope, asyncio.TaskGroup() as group:

            async def stop() -> None:
                await entered.wait()
                scope.reschedule(0)

            group.create_task(stop())
            await scorer.score("x", task)
    release.set()
    with pytest.raises(RolloutError, match="StopIteration"):
        await scorer.score("x", task)


async def test_sampling_of_an_evaluation_replaces_the_tasksets() -> None:
    class Keeps(OneAnswer):
        async def generate(self, request: GenerationRequest) -> Generation:
            assert request.sampling.temperature == 0.0
            return await super().generate(request)

    spec = taskset()
    task = make_task({"prompt": "p", "response": "42"}, spec=spec, row=0)
    runner = WorkflowRunner(spec, model=MODEL, engine=Keeps(), tokenizer=ByteTokenizer())
    greedy = msgspec.structs.replace(spec.sampling, temperature=0.0)
    assert (await runner.run(task, UUID(int=1), sampling=greedy)).reward == 1.0


async def test_a_declared_role_that_never_speaks_is_reported_once(plugin: None) -> None:
    reported: list[tuple[str, str]] = []
    spec = taskset("talks")
    task = make_task({"prompt": "p", "response": "42"}, spec=spec, row=0)
    runner = WorkflowRunner(
        spec,
        model=MODEL,
        engine=OneAnswer(),
        tokenizer=ByteTokenizer(),
        on_silent_role=lambda workflow, role: reported.append((workflow, role)),
    )
    for rollout in range(SILENT_ROLLOUTS - 1):
        await runner.run(task, UUID(int=rollout))
    assert reported == []
    for rollout in range(2 * SILENT_ROLLOUTS):
        await runner.run(task, UUID(int=SILENT_ROLLOUTS + rollout))
    assert reported == [("talks", "critic")]
