"""Auxiliary models as rollouts see them: engines of their own and services, recorded, in workflows and rewards."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast
from uuid import UUID

import httpx
import msgspec
import pytest
from synthetic.docs.pages import block_named
from synthetic.models.scripted_engine import SPEC as MODEL
from synthetic.models.scripted_engine import ScriptedEngine, running_endpoint
from synthetic.worlds.rollout_bench import WEIGHTS, Fated, Rows, eval_lease

from rftd.ops import limits
from rftd.ops.clock import ManualClock, SystemClock
from rftd.ops.errors import ConfigError, RolloutError, WorkError
from rftd.ops.logs import logger
from rftd.ops.redaction import Secret
from rftd.streams.spec.engines import AuxiliarySpec
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, SamplingSpec, StageSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task, make_task
from rftd.workers.engines.fake.rollout import FakeRolloutEngine
from rftd.workers.generation.auxiliary.auxiliary_model import AuxiliaryAnswer, ModelAddress
from rftd.workers.generation.auxiliary.own_engine import published
from rftd.workers.generation.auxiliary.rollout_models import AuxiliaryModels, RolloutModels
from rftd.workers.generation.engine import EngineStats
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.rollout.eval_engine import OwnEngine
from rftd.workers.rollout.evaluator import Evaluator
from rftd.workers.rollout.rollouts import RolloutPlaces
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.workflows.agent_program import AGENTS
from rftd.workers.workflows.orphans import Orphans
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.llm_judge import LlmJudgeReward
from rftd.workers.workflows.rewards.scorer import Scorer
from rftd.workers.workflows.runner import WorkflowRunner
from rftd.workers.workflows.threads import on_own_thread

pytestmark = pytest.mark.anyio
JUDGE = AuxiliarySpec(
    name="judge",
    engine="external",
    model_name="m",
    base_url="http://judge.test/v1",
    api_key_env="JUDGE_KEY",
    max_response_tokens=64,
    engine_args={"retries": 2},
)
FAKE = AuxiliarySpec(
    name="sums",
    engine="fake",
    max_model_len=256,
    max_prompt_tokens=128,
    max_response_tokens=64,
    engine_args={"skill": 1.0},
)
ASKED = (Message("user", "2+3="),)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def experiment(folder: Path, *auxiliary: AuxiliarySpec) -> ExperimentSpec:
    stage = StageSpec(
        name="one",
        kind="both",
        total_steps=1,
        batch_size=1,
        train_batch_size=1,
        algorithm=AlgorithmSpec(kind="grpo"),
        model=MODEL,
        auxiliary=auxiliary,
    )
    return ExperimentSpec(project="p", name="n", job_dir=str(folder), stages=(stage,), config={})


@asynccontextmanager
async def running(spec: ExperimentSpec, **more: Any) -> AsyncIterator[AuxiliaryModels]:
    """The models of the experiment while the block runs."""
    models = AuxiliaryModels(spec, clock=SystemClock(), environ={"JUDGE_KEY": "sk-1"}, random=Random(1), **more)
    work = asyncio.ensure_future(models.run())
    try:
        yield models
    finally:
        work.cancel()
        await asyncio.wait([work])
    assert work.cancelled(), work


def saying(text: str, *, status: int = 200) -> httpx.MockTransport:
    """A service that says one thing."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content)["messages"][-1]["content"]
        said = {"role": "assistant", "content": text.replace("ASKED", asked)}
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        return httpx.Response(status, json={"choices": [{"message": said}], "usage": usage})

    return httpx.MockTransport(answer)


def entered(models: AuxiliaryModels, spec: ExperimentSpec, rollout: int = 1) -> RolloutModels:
    return models.of(spec.stages[0], UUID(int=rollout), UUID(int=rollout))


async def test_an_engine_of_its_own_answers_and_is_opened_once(tmp_path: Path) -> None:
    spec = experiment(tmp_path, FAKE)
    async with running(spec) as models:
        rollouts = [entered(models, spec, number) for number in range(4)]
        answers = await asyncio.gather(*(each.models[0].chat(ASKED) for each in rollouts))
    assert {len(answer.text) for answer in answers} == {1}
    (turn,) = rollouts[0].turns
    assert (turn.model, turn.text, turn.chars, turn.tokens) == ("sums", answers[0].text, 1, 2)
    assert turn.asked == rollouts[1].turns[0].asked
    assert len(list((tmp_path / "auxiliary" / "sums" / "weights").iterdir())) == 1


async def test_questions_are_spread_over_the_engines_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[FakeRolloutEngine] = []
    answered: list[FakeRolloutEngine] = []
    generate = FakeRolloutEngine.generate

    async def counted(engine: FakeRolloutEngine, *arguments: Any, **named: Any) -> Any:
        answered.append(engine)
        if engine not in opened:
            opened.append(engine)
        return await generate(engine, *arguments, **named)

    monkeypatch.setattr(FakeRolloutEngine, "generate", counted)
    spec = experiment(tmp_path, msgspec.structs.replace(FAKE, engines=3, engine_args={"skill": 1.0, "latency_s": 0.01}))
    async with running(spec) as models:
        rollouts = [entered(models, spec, number) for number in range(9)]
        await asyncio.gather(*(rollout.models[0].chat(ASKED) for rollout in rollouts))
        for _ in range(2):
            await rollouts[0].models[0].chat(ASKED)
    assert [answered[:9].count(engine) for engine in opened] == [3, 3, 3]
    assert answered[9] is answered[10], "a rollout stays with its engine, which numbers its questions"
    assert len(list((tmp_path / "auxiliary" / "sums" / "weights").iterdir())) == 1


def test_engines_of_a_process_publish_the_same_weights_at_once(tmp_path: Path) -> None:
    writers = 8
    barrier = threading.Barrier(writers)

    def publish(_: int) -> WeightsRef:
        barrier.wait()
        return published({}, tmp_path / "weights")

    for turn in range(5):
        shutil.rmtree(tmp_path / "weights", ignore_errors=True)
        with ThreadPoolExecutor(writers) as pool:
            references = set(pool.map(publish, range(writers)))
        assert len(references) == 1, turn
        assert [path.name for path in (tmp_path / "weights").iterdir()] == [references.pop().manifest], "nothing else"


async def test_a_model_folder_is_linked_and_its_weights_are_verified(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", seed=1)
    tiny = msgspec.structs.replace(FAKE, name="tiny", engine="torch", path=str(folder), engine_args={})
    spec = experiment(tmp_path / "job", tiny)
    async with running(spec) as models:
        first = await entered(models, spec).models[0].chat(ASKED)
        again = await entered(models, spec).models[0].chat(ASKED)
        with pytest.raises(RolloutError, match="more than 128 tokens") as refused:
            await entered(models, spec).models[0].chat([Message("user", "1+" * 200)])
    assert first == again
    assert first.tokens > 0
    assert "max_prompt_tokens" in str(refused.value.fix)
    (linked,) = (tmp_path / "job" / "auxiliary" / "tiny" / "weights").glob("*/model.safetensors")
    assert linked.is_symlink()


async def test_an_engine_that_cannot_be_opened_fails_the_attempt_and_is_tried_again(tmp_path: Path) -> None:
    tiny = msgspec.structs.replace(FAKE, name="tiny", engine="torch", path=str(tmp_path / "gone"), engine_args={})
    spec = experiment(tmp_path / "job", tiny)
    async with running(spec) as models:
        for _ in range(2):
            with pytest.raises(RolloutError, match="'tiny' cannot be opened") as refused:
                await entered(models, spec).models[0].chat(ASKED)
    assert str(tmp_path / "gone") in str(refused.value)


async def test_an_engine_that_died_is_told_of_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = experiment(tmp_path, FAKE, JUDGE)
    async with running(spec) as models:
        models.check_lives()
        await entered(models, spec).models[0].chat(ASKED)
        models.check_lives()
        gone = EngineStats(tokens_total=0, requests_total=0, running=0, waiting=0, error="process 7 ended")
        monkeypatch.setattr(FakeRolloutEngine, "stats", lambda self: gone)
        with pytest.raises(WorkError, match="the engine of the auxiliary model 'sums' failed: process 7 ended"):
            models.check_lives()
    models.check_lives()


async def test_a_thread_s_rollout_asks_on_the_explorer_s_loop(tmp_path: Path) -> None:
    spec = experiment(tmp_path, FAKE, JUDGE)
    async with running(spec, transport=saying("ASKED?")) as models:
        asked = entered(models, spec)

        async def work() -> list[AuxiliaryAnswer]:
            return [await each.chat(ASKED) for each in asked.models]

        answers = await on_own_thread(work)
    assert answers[1].text == "2+3=?"
    assert [turn.model for turn in asked.turns] == ["sums", "judge"]


async def test_a_key_that_is_not_set_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="JUDGE_KEY"):
        AuxiliaryModels(experiment(tmp_path, JUDGE), clock=ManualClock(), environ={}, random=Random(1))


def test_the_record_is_bounded() -> None:
    record = RolloutModels()
    for number in range(limits.AUXILIARY_TURNS + 5):
        record.note("judge", "d", AuxiliaryAnswer(text="x" * 1000, finish="stop", tokens=number))
    assert len(record.turns) == limits.AUXILIARY_TURNS
    assert sum(len(turn.text) for turn in record.turns) == limits.AUXILIARY_TEXT_CHARS
    assert {turn.chars for turn in record.turns} == {1000}


ROW = {"question": "2+2?", "answer": "4"}
TASKSET = TasksetSpec(
    name="t",
    path="/t.jsonl",
    format=Format(prompt_type="raw", prompt_key="question", response_key="answer"),
    workflow="math_rm_workflow",
    sampling=SamplingSpec(max_tokens=64),
)


async def judged(folder: Path, transport: httpx.AsyncBaseTransport, **taskset: Any) -> RolloutResult:
    """A rollout that answers `four`, with the reward of the judge."""
    spec = experiment(folder, JUDGE)
    wanted = msgspec.structs.replace(TASKSET, **taskset)
    async with running(spec, transport=transport) as models:
        runner = WorkflowRunner(
            wanted,
            model=MODEL,
            engine=ScriptedEngine(replies=["four"]),
            tokenizer=ByteTokenizer(),
            auxiliary=partial(models.of, spec.stages[0]),
        )
        task = make_task(ROW, spec=wanted, row=0)
        return await runner.run(task, UUID(int=7))


async def test_a_judge_is_told_question_truth_and_answer_and_its_words_are_kept(tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content)["messages"][0]["content"])
        return httpx.Response(200, json={"choices": [{"message": {"content": "It is.\nVerdict: 1\n"}}]})

    result = await judged(tmp_path, httpx.MockTransport(answer))
    assert (result.reward, result.metrics["judge"]) == (1.0, 1.0)
    (turn,) = result.auxiliary
    assert (turn.model, turn.text) == ("judge", "It is.\nVerdict: 1\n")
    assert [text in seen[0] for text in ("2+2?", "<reference>\n4\n", "<answer>\nfour\n")] == [True] * 3


async def test_a_judge_s_words_are_kept_with_the_scores_of_held_out_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "It is.\nVerdict: 1\n"
    monkeypatch.setattr(limits, "EVAL_AUXILIARY_CHARS", len(said) + 5)
    held_out = msgspec.structs.replace(TASKSET, format=Format(prompt_type="raw"))
    spec = experiment(tmp_path, JUDGE)
    stage = msgspec.structs.replace(spec.stages[0], evals=(held_out,))

    async def opened() -> Any:
        return Fated()

    async with running(spec, transport=saying(said)) as models:
        evaluator = Evaluator(
            OwnEngine(opened, nullcontext),
            ByteTokenizer(),
            places=lambda _: RolloutPlaces(2),
            clock=SystemClock(),
            orphans=Orphans(logger(), grace_s=30.0),
            log=logger(),
            auxiliary=models,
        )
        scored = await evaluator.score(eval_lease(2), stage, cast(Any, Rows(held_out)), WEIGHTS)
        await evaluator.close()
    assert scored.rewards.view().tolist() == [1.0, 1.0]
    assert [(each.row, [turn.text for turn in each.turns]) for each in scored.auxiliary] == [
        (0, [said]),
        (1, [said[:5]]),
    ]
    assert [turn.chars for each in scored.auxiliary for turn in each.turns] == [len(said)] * 2


@pytest.mark.parametrize(
    "text",
    ["", "4", "Verdict: yes", "Verdict: 1 or 0", "Verdict: 1\nOr not.", "so Verdict: 1", "Verdict: -1", "Verdict: 2"],
)
async def test_a_judge_without_a_verdict_fails_the_attempt(tmp_path: Path, text: str) -> None:
    with pytest.raises(RolloutError, match="verdict") as refused:
        await judged(tmp_path, saying(text))
    assert refused.value.where == make_task(ROW, spec=TASKSET, row=0).where


async def test_a_judge_s_service_that_refuses_fails_the_attempt_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match="the service of the auxiliary model 'judge' answered 404"):
        await judged(tmp_path, saying("", status=404))


def test_a_response_cannot_read_the_truth_or_give_the_verdict() -> None:
    reward = LlmJudgeReward(text="Q {question} A {response} T {truth}", lowest=0, highest=10)
    asked: list[str] = []

    class Judge:
        name = "judge"

        async def chat(self, messages: Sequence[Message], *, sampling: SamplingSpec | None = None) -> AuxiliaryAnswer:
            asked.append(messages[0].content)
            return AuxiliaryAnswer(text="Verdict: 2.5", finish="stop")

        @asynccontextmanager
        async def served(self) -> AsyncIterator[ModelAddress]:
            raise AssertionError
            yield

    task = make_task(ROW, spec=TASKSET, row=0)
    given = asyncio.run(reward.score("{truth}\nVerdict: 10", "4", task, auxiliary_models=[Judge()]))
    assert given.value == 0.25
    assert asked == ["Q 2+2? A {truth}\nVerdict: 10 T 4"]
    with pytest.raises(RolloutError, match="no auxiliary model is named 'other'"):
        asyncio.run(LlmJudgeReward(judge="other").score("", "", task, auxiliary_models=[Judge()]))


@pytest.mark.parametrize("arguments", [{"prompt": "x"}, {"text": "no place"}, {"text": "{response}", "highest": 0}])
def test_a_judge_s_arguments_are_checked(arguments: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LlmJudgeReward(**arguments)


async def test_an_agent_program_is_given_the_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def solve(task: Task, *, base_url: str, api_key: str, auxiliary_models: Sequence[ModelAddress]) -> float:
        own, service = auxiliary_models
        assert (service.base_url, service.api_key, service.model) == ("http://judge.test/v1", "sk-1", "m")
        async with httpx.AsyncClient(trust_env=False) as client:
            for place in (ModelAddress(base_url, Secret(api_key), "any"), own):
                response = await client.post(
                    f"{place.base_url}/chat/completions",
                    headers={"Authorization": f"Bearer {place.api_key}"},
                    json={"model": place.model, "messages": [{"role": "user", "content": "4+4="}]},
                )
                response.raise_for_status()
        return float(response.json()["choices"][0]["message"]["content"])

    monkeypatch.setattr(AGENTS, "load", lambda name: solve)
    monkeypatch.setattr(AGENTS, "check", lambda name: None)
    spec = experiment(tmp_path, FAKE, JUDGE)
    taskset = msgspec.structs.replace(TASKSET, workflow="agent_program_workflow", workflow_args={"agent": "solve"})
    async with running_endpoint() as endpoint, running(spec, endpoint=endpoint) as models:
        runner = WorkflowRunner(
            taskset,
            model=MODEL,
            engine=ScriptedEngine(),
            tokenizer=ByteTokenizer(),
            endpoint=endpoint,
            auxiliary=partial(models.of, spec.stages[0]),
        )
        result = await runner.run(make_task(ROW, spec=taskset, row=0), UUID(int=7))
    assert [(turn.model, float(turn.text)) for turn in result.auxiliary] == [("sums", result.reward)]


TRINITY = """
from trinity.common.workflows.workflow import Workflow

class Judged(Workflow):
    is_async = True

    async def run_async(self):
        [answer] = await self.model.chat_async([{"role": "user", "content": "4+4="}])
        judge = self.auxiliary_models[0]
        asked = judge.chat.completions.create(model=judge.model_path, messages=[{"role": "user", "content": "4+4="}])
        reply = await asked
        answer.reward = float(reply.choices[0].message.content)
        return [answer]
"""


async def test_an_asynchronous_class_of_trinity_awaits_its_auxiliary_models(tmp_path: Path) -> None:
    spec = experiment(tmp_path, FAKE)
    taskset = msgspec.structs.replace(TASKSET, workflow="theirs.py:Judged", workflow_args={})
    async with running_endpoint() as endpoint, running(spec, endpoint=endpoint) as models:
        runner = WorkflowRunner(
            taskset,
            model=MODEL,
            engine=ScriptedEngine(),
            tokenizer=ByteTokenizer(),
            endpoint=endpoint,
            auxiliary=partial(models.of, spec.stages[0]),
            sources={"theirs.py": TRINITY},
        )
        result = await runner.run(make_task(ROW, spec=taskset, row=0), UUID(int=7))
    assert [float(turn.text) for turn in result.auxiliary] == [result.reward]


@pytest.mark.parametrize(("said", "value"), [("Yes.", 1.0), ("no", 0.0), ("perhaps", None)])
async def test_the_judge_of_the_extending_page(tmp_path: Path, said: str, value: float | None) -> None:
    page: dict[str, Any] = {}
    exec(block_named("politeness.py").text, page)
    scorer = Scorer("politeness", page["Politeness"](), on_thread=True)
    spec = experiment(tmp_path, JUDGE)
    async with running(spec, transport=saying(said)) as models:
        asked = entered(models, spec)
        scored = scorer.beside(asked.models).score("please", make_task(ROW, spec=TASKSET, row=0))
        if value is None:
            with pytest.raises(RolloutError, match="neither yes nor no"):
                await scored
        else:
            assert (await scored).value == value
    assert asked.turns[0].text == said
