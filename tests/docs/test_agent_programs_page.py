"""The agent of the page runs, over a model that says what the page expects of one."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from synthetic.docs.package import install_careful
from synthetic.models.scripted_engine import SPEC, ScriptedEngine, running_endpoint

from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.workflows.runner import WorkflowRunner

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 20, "b": 22}}\n</tool_call>'


@pytest.mark.anyio
async def test_the_agent_of_the_page_calls_its_tool_and_is_trained_on_what_it_drew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_careful(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "*")
    taskset = TasksetSpec(
        name="sums",
        path="sums.jsonl",
        format=Format(prompt_key="question", response_key="answer"),
        workflow="agent_program_workflow",
        workflow_args={"agent": "careful"},
        sampling=SamplingSpec(max_tokens=200),
    )
    task = make_task({"question": "20+22?", "answer": "42"}, spec=taskset, row=0)
    engine = ScriptedEngine([CALL, "It is 42."])
    async with running_endpoint() as endpoint:
        runner = WorkflowRunner(taskset, model=SPEC, engine=engine, tokenizer=ByteTokenizer(), endpoint=endpoint)
        result = await runner.run(task, UUID(int=1))
    assert result.metrics == {"right": 1.0, "calls": pytest.approx(-0.04)}
    drawn = [token for generation in engine.drawn for token in generation.tokens]
    assert result.tokens[result.prompt_tokens :][result.loss_mask == 1].tolist() == drawn
    assert not result.steps
