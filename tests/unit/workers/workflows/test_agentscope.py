"""AgentScope's agents as commands, over a small package in place of AgentScope; the real one: tests/agents."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine, running_endpoint

from rftd.ops.errors import ConfigError
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.workflows.agentscope.names import AGENTSCOPE_WORKFLOWS, agentscope_line
from rftd.workers.workflows.agentscope.workflow import AgentScopeWorkflow
from rftd.workers.workflows.registry import WORKFLOWS
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.runner import WorkflowRunner

PACKAGE = '''
"""The names that the command imports, and an agent of one call."""
import json, os, sys, types, urllib.request


class Msg:
    def __init__(self, name, text, role="user", metadata=None):
        self.text, self.metadata = text, metadata

    def get_text_content(self):
        return self.text


class OpenAIChatModel:
    def __init__(self, model_name, api_key, stream, client_kwargs):
        self.url, self.key = client_kwargs["base_url"], api_key

    def ask(self, text):
        body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
        headers = {"Authorization": "Bearer " + self.key, "Content-Type": "application/json"}
        reply = urllib.request.urlopen(urllib.request.Request(self.url + "/chat/completions", body, headers))
        return json.load(reply)["choices"][0]["message"]["content"]


class Toolkit:
    tools = ()

    def register_tool_function(self, function):
        self.tools = (*self.tools, function.__name__)

    async def register_mcp_client(self, client):
        self.tools = (*self.tools, client.command)


class StdIOStatefulClient:
    def __init__(self, name, command, args, env):
        self.command = command

    async def connect(self):
        pass

    async def close(self):
        pass


def execute_python_code():
    pass


class ReActAgent:
    def __init__(self, name, sys_prompt, model, formatter, toolkit, enable_meta_tool, max_iters):
        self.model, self.words = model, f"{toolkit.tools} {enable_meta_tool} {max_iters}"

    async def reply(self, message, structured_model):
        answer = self.model.ask(f"{message.text} {self.words}")
        return Msg("a", answer, metadata={"result": answer} if "boxed" in answer else None)


class BaseModel:
    pass


names = dict(
    agent={"ReActAgent": ReActAgent}, formatter={"OpenAIChatFormatter": object},
    mcp={"StdIOStatefulClient": StdIOStatefulClient},
    message={"Msg": Msg}, model={"OpenAIChatModel": OpenAIChatModel},
    tool={"Toolkit": Toolkit, "execute_python_code": execute_python_code},
)
for name, members in names.items():
    module = sys.modules["agentscope." + name] = types.ModuleType(name)
    vars(module).update(members)
'''
PYDANTIC = "class BaseModel: pass\ndef Field(description): return description\n"
MINE = """
class Output:
    response, reward = "r", 0.25

class Judgement:
    reward = 0.75

async def solve(row, model):
    return len(model.ask(row["question"])) * float(row["answer"] == "42")

async def tuned(row, model, auxiliary_models):
    assert auxiliary_models == {}
    model.ask("q")
    return Output

async def judge(row, response, auxiliary_models):
    assert response == "r"
    return Judgement
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that the user of a sandbox may read, which `tmp_path` is not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


async def rollout_of(
    root: Path, workflow: str, reply: str, reward: str | None = None, **arguments: Any
) -> tuple[RolloutResult, ScriptedEngine]:
    """One rollout of an agent on the small package."""
    (root / "agentscope").mkdir()
    (root / "agentscope" / "__init__.py").write_text(PACKAGE)
    (root / "pydantic.py").write_text(PYDANTIC)
    taskset = TasksetSpec(
        name="sums",
        path="sums.jsonl",
        format=Format(prompt_key="question", response_key="answer"),
        workflow=workflow,
        workflow_args={
            "python": sys.executable,
            "environ": {"PYTHONPATH": str(root)},
            "readable": [str(root)],
            **arguments,
        },
        reward=reward,
        sampling=SamplingSpec(max_tokens=200),
    )
    engine = ScriptedEngine([reply])
    task = make_task({"question": "6*7?", "answer": "42"}, spec=taskset, row=0)
    async with running_endpoint() as endpoint:
        runner = WorkflowRunner(taskset, model=SPEC, engine=engine, tokenizer=ByteTokenizer(), endpoint=endpoint)
        return await runner.run(task, UUID(int=1)), engine


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("workflow", "words"),
    [("as_react_workflow", "() True 3"), ("agentscope_react_math_workflow", "('execute_python_code',) False 3")],
)
async def test_an_agent_has_its_tools_and_is_trained_on_what_it_drew(workflow: str, words: str, root: Path) -> None:
    rollout, engine = await rollout_of(root, workflow, "\\boxed{42}", "math_boxed_reward", max_turns=3)
    assert words in bytes(token for token in engine.requests[0].prompt if token < 256).decode()
    trained = rollout.tokens[rollout.prompt_tokens :][rollout.loss_mask == 1].tolist()
    assert trained == list(engine.drawn[0].tokens)
    assert rollout.reward == 1.0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("workflow", "functions", "reward"),
    [
        ("agentscope_workflow_adapter", {"workflow_func": "mine.py:solve"}, 3.0),
        ("agentscope_workflow_adapter_v1", {"workflow_func": "mine.py:tuned"}, 0.25),
        ("agentscope_workflow_adapter_v1", {"workflow_func": "mine.py:tuned", "judge_func": "mine.py:judge"}, 0.75),
    ],
)
async def test_a_function_or_its_judge_has_the_reward(
    workflow: str, functions: dict[str, str], reward: float, root: Path
) -> None:
    mine = root / "mine"
    mine.mkdir()
    (mine / "mine.py").write_text(MINE)
    rollout, _ = await rollout_of(root, workflow, "yes", agent_folder=str(mine), **functions)
    assert rollout.reward == reward


@pytest.mark.anyio
@pytest.mark.parametrize(("limit", "trains"), [(24000, True), (1, False)])
async def test_a_sequence_beyond_the_limit_of_a_search_is_recorded_and_not_trained(
    limit: int, trains: bool, root: Path
) -> None:
    rollout, engine = await rollout_of(
        root,
        "agentscope_v1_react_search_workflow",
        "\\boxed{42}",
        "math_boxed_reward",
        max_model_tokens=limit,
        search_command=["no-server"],
    )
    response = rollout.tokens[rollout.prompt_tokens :].tolist()
    assert response[: len(engine.drawn[0].tokens)] == list(engine.drawn[0].tokens)
    assert bool(rollout.loss_mask.any()) is trains
    assert rollout.reward == 1.0


@pytest.mark.parametrize("limit", [0, -1, "many"])
def test_a_limit_of_tokens_that_is_no_positive_number_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match="max_model_tokens"):
        WORKFLOWS.check_arguments(
            "agentscope_v1_react_search_workflow", {"python": sys.executable, "max_model_tokens": limit}
        )


def test_a_python_that_is_missing_or_has_no_agentscope_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="agentscope is not installed") as refused:
        AgentScopeWorkflow.check_arguments()
    assert "python: /PATH/bin/python" in str(refused.value.fix)
    with pytest.raises(ConfigError, match="is no program"):
        AgentScopeWorkflow.check_arguments(python="/nowhere/python")
    AgentScopeWorkflow.check_arguments(python=sys.executable)


def test_a_line_of_commands_has_the_python_the_name_and_the_search_server() -> None:
    assert set(WORKFLOWS.ours()) >= AGENTSCOPE_WORKFLOWS
    assert agentscope_line("as_react_workflow", {}) == "python as_react_workflow"
    arguments = {"python": "/a b/python", "search_command": ["npx", "server"]}
    assert agentscope_line("s_workflow", arguments) == "'/a b/python' s_workflow npx server"
