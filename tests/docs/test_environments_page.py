"""The program of the page keeps the contract, and its taskset is played; each address of the page is one."""

from __future__ import annotations

import sys
from pathlib import Path
from uuid import UUID

import pytest
import yaml
from synthetic.docs.pages import block_named
from synthetic.models.scripted_engine import SPEC, ScriptedEngine

from rftd.streams.spec.spec import SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.workflows.environments.address import environment_address
from rftd.workers.workflows.environments.rows import environment_rows
from rftd.workers.workflows.environments.workflow import EnvironmentWorkflow
from rftd.workers.workflows.runner import WorkflowRunner


@pytest.mark.anyio
async def test_the_program_of_the_page_is_played_until_the_number_is_guessed(tmp_path: Path) -> None:
    (tmp_path / "guess").mkdir()
    (tmp_path / "guess" / "guess.py").write_text(block_named("guess.py").text)
    section = yaml.safe_load(block_named("guess.yaml").text)["buffer"]["explorer_input"]["taskset"]
    arguments = {**section["workflow_args"], "environment": section["path"]}
    arguments["environment_command"] = [sys.executable, *arguments["environment_command"][1:]]
    arguments["environment_folder"] = str(tmp_path / arguments["environment_folder"])
    rows = [row async for row in environment_rows(EnvironmentWorkflow(**arguments).program)]
    assert len(rows) == 10
    taskset = TasksetSpec(
        name="guess",
        path="rows.jsonl",
        workflow="environment_workflow",
        workflow_args=arguments,
        sampling=SamplingSpec(max_tokens=50),
    )
    engine = ScriptedEngine(["1", "2"])
    runner = WorkflowRunner(taskset, model=SPEC, engine=engine, tokenizer=ByteTokenizer())
    rollout = await runner.run(make_task(rows[0], spec=taskset, row=0), UUID(int=7))
    assert rollout.reward == 1.0
    drawn = [token for generation in engine.drawn for token in generation.tokens]
    assert rollout.tokens[rollout.prompt_tokens :][rollout.loss_mask == 1].tolist() == drawn


def test_the_addresses_of_the_page_can_be_read() -> None:
    tasksets = yaml.safe_load(block_named("games.yaml").text)["buffer"]["explorer_input"]["tasksets"]
    addresses = [environment_address(taskset["path"]) for taskset in tasksets]
    kinds = [address.kind for address in addresses]
    assert kinds == ["reasoning_gym", "gymnasium", "textworld", "verifiers", "openenv"]
