"""A dry run: the daemon says of a file what it would say of its submission, and appends nothing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from synthetic.daemon.idle_supervisor import TASKSET, client_of, file_of

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import load_text
from rftd.streams.memory import MemoryLog
from rftd.workers.devices.host import ANY_HOST, Host

pytestmark = pytest.mark.anyio

DAEMONS = {"RFTD-DAT-001", "RFTD-CON-001", "RFTD-CFG-001"}
"""Codes of what only a daemon can see: files, folders, and steps that rows are too few for."""
CHECK = "/v1/experiments/check"
SUBMIT = "/v1/experiments"


def taskset(**changes: Any) -> dict[str, Any]:
    return {"buffer": {"explorer_input": {"taskset": changes}}}


REFUSED: dict[str, dict[str, Any]] = {
    "a field that nobody knows": {"nonsense": 1},
    "a mode that is none": {"mode": "sideways"},
    "an algorithm that is none": {"algorithm": {"algorithm_type": "grpoo"}},
    "an engine that is none": {"explorer": {"rollout_model": {"engine_type": "vlm"}}},
    "a trainer that is none": {"trainer": {"trainer_type": "torchh"}},
    "a workflow that is none": taskset(default_workflow_type="simple_workflo"),
    "a reward that is none": taskset(default_reward_fn_type="exact_match_rewar"),
    "an argument that no reward takes": taskset(reward_fn_args={"nonsense": 1}),
    "a dataset that is not there": taskset(path="/gone.jsonl"),
    "a column that is not there": taskset(format={"prompt_key": "quest"}),
    "a truth that is a mapping": taskset(format={"response_key": "rule"}),
    "a model that is not there": {"trainer": {"trainer_type": "torch"}},
    "epochs of no step": {"buffer": {"batch_size": 64, "total_steps": None, "total_epochs": 1}},
    "a priority function that is none": {
        "buffer": {
            "trainer_input": {
                "experience_buffer": {"replay_buffer": {"enable": True, "priority_fn": "linear_deca"}},
            }
        }
    },
    "a relative folder": {"checkpoint_root_dir": "./checkpoints"},
    "a relative dataset": taskset(path="./train.jsonl"),
    "a relative model": {"model": {"model_path": "../model"}},
    "a secret": {"explorer": {"env_vars": {"OPENAI_API_KEY": "sk-123"}}},
    "a folder that is in use": {"name": "used"},
    "a half of what is in use": {"name": "used", "mode": "explore"},
    "a stage that asks for another engine than the first": {
        "stages": [
            {"stage_name": "one"},
            {"stage_name": "two", "explorer": {"rollout_model": {"engine_type": "torch"}}},
        ]
    },
}
TAKEN: dict[str, dict[str, Any]] = {
    "as it is": {},
    "two stages": {"stages": [{"stage_name": "one"}, {"stage_name": "two"}]},
    "one half": {"mode": "explore"},
    "a time stamp": {"name": "used", "continue_from_checkpoint": False},
    "evaluations alone": {
        "mode": "bench",
        "buffer": {"explorer_input": {"taskset": None, "eval_tasksets": [{"name": "e", **TASKSET}]}},
    },
    "a reference, which stays text": {"labels": {"home": "${oc.env:HOME}"}},
    "a key that leads into a column": taskset(format={"response_key": "rule.truth"}),
    "what warns": {"explorer": {"rollout_model": {"enforce_eager": True}}},
}


@pytest.fixture
async def log() -> AsyncIterator[MemoryLog]:
    opened = MemoryLog()
    yield opened
    await opened.close()


@pytest.fixture
async def client(tmp_path: Path, log: MemoryLog) -> AsyncIterator[httpx.AsyncClient]:
    """A real supervisor behind the API, whose workers are on machines that it does not see."""
    async with client_of(tmp_path, log, ANY_HOST) as opened:
        yield opened


async def records(log: MemoryLog) -> object:
    """The ends of all partitions."""
    return await log.heads()


def said(answer: httpx.Response) -> list[tuple[int, str, str, str]]:
    """The errors of an answer, sorted: status, code, field and sentence of each."""
    body = answer.json()
    found = body["errors"] or [body]
    return sorted((answer.status_code, each["code"], each["field"], each.get("what", body["detail"])) for each in found)


def errors_here(config: dict[str, Any]) -> set[tuple[str, str]]:
    """Codes and fields of the errors that need no daemon."""
    try:
        load_text(yaml.safe_dump(config), "mine.yaml", environ={"HOME": "${"})
    except ConfigErrors as errors:
        return {(each.code, each.field or "") for each in errors.errors}
    return set()


async def asked(client: httpx.AsyncClient, path: str, config: dict[str, Any], *, file: bool = False) -> httpx.Response:
    """The answer to a configuration, as JSON or as a file."""
    if file:
        return await client.post(path, content=yaml.safe_dump(config), headers={"Content-Type": "application/yaml"})
    return await client.post(path, json={"config": config})


async def test_a_dry_run_refuses_what_a_submission_refuses(
    client: httpx.AsyncClient, tmp_path: Path, log: MemoryLog
) -> None:
    before = await records(log)
    differences: dict[str, object] = {}
    for case, changes in REFUSED.items():
        config = file_of(tmp_path, changes)
        checked = await asked(client, CHECK, config)
        as_file = await asked(client, CHECK, config, file=True)
        submitted = await asked(client, SUBMIT, config)
        if submitted.status_code not in (409, 422) or not said(checked) == said(as_file) == said(submitted):
            differences[case] = (checked.text, as_file.text, submitted.text)
        here = errors_here(config)
        there = {(code, field) for _, code, field, _ in said(submitted)}
        # The client makes paths absolute, so what it says of a relative one is nothing.
        if not here <= there or not (here or "relative" in case or {code for code, _ in there} <= DAEMONS):
            differences[f"{case}: here"] = (here, there)
    assert differences == {}
    assert await records(log) == before


async def test_a_submission_takes_what_a_dry_run_takes(
    client: httpx.AsyncClient, tmp_path: Path, log: MemoryLog
) -> None:
    differences: dict[str, object] = {}
    for number, (case, changes) in enumerate(TAKEN.items()):
        config = file_of(tmp_path, {"name": f"taken{number}"} | changes)
        before = await records(log)
        answers = [await asked(client, CHECK, config), await asked(client, CHECK, config, file=True)]
        if await records(log) != before:
            differences[case] = "a dry run appended something"
        answers.append(await asked(client, SUBMIT, config))
        warnings = [answer.json().get("warnings") for answer in answers]
        names = {answer.json().get("name", "").partition("_")[0] for answer in answers}
        statuses = [answer.status_code for answer in answers]
        if statuses != [200, 200, 202] or names != {config["name"]} or warnings[1:] != warnings[:-1]:
            differences[case] = [answer.text for answer in answers]
        if await records(log) == before:
            differences[case] = "the submission appended nothing"
    assert differences == {}


async def test_a_folder_that_cannot_be_written_is_named_before_anything_starts(tmp_path: Path, log: MemoryLog) -> None:
    (tmp_path / "file").write_text("no folder")
    async with client_of(tmp_path, log, Host(name="here")) as client:
        for path in ("/proc/none", str(tmp_path / "file" / "checkpoints")):
            config = file_of(tmp_path, {"checkpoint_root_dir": path})
            checked, submitted = await asked(client, CHECK, config), await asked(client, SUBMIT, config)
            assert said(checked) == said(submitted)
            ((status, code, field, what),) = said(submitted)
            assert (status, code, field) == (422, "RFTD-CFG-001", "checkpoint_root_dir")
            assert f"{path}/p/mine cannot be written" in what
        assert (await asked(client, CHECK, file_of(tmp_path, {}))).status_code == 200
    assert sorted(os.listdir(tmp_path)) == ["c", "file", "t.jsonl"]


async def test_all_that_is_wrong_comes_at_once_each_at_its_line(client: httpx.AsyncClient, tmp_path: Path) -> None:
    text = f"""\
project: p
name: mine
checkpoint_root_dir: {tmp_path}/c
algorithm: {{algorithm_type: grpo, repeat_times: 4}}
model: {{model_path: /gone, max_model_len: 64, max_prompt_tokens: 32}}
buffer:
  batch_size: 2
  explorer_input:
    default_reward_fn_type: exact_match_rewar
    taskset: {{path: {tmp_path}/t.jsonl, format: {{prompt_type: raw, prompt_key: quest}}}}
    default_eval_workflow_type: simple_workflo
    eval_tasksets:
    - {{name: gone, path: /gone.jsonl}}
explorer: {{rollout_model: {{engine_type: fake, engine_num: 1}}}}
trainer: {{trainer_type: torch}}
synchronizer: {{sync_method: checkpoint}}
"""
    answer = await client.post(CHECK, content=text, headers={"Content-Type": "application/yaml"})
    found = [(each["field"], each["where"].split(":")[1]) for each in answer.json()["errors"]]
    assert found == [
        ("model.model_path", "5"),
        ("buffer.explorer_input.default_reward_fn_type", "9"),
        ("buffer.explorer_input.taskset.format.prompt_key", "10"),
        ("buffer.explorer_input.eval_tasksets[0].default_workflow_type", "13"),
        ("buffer.explorer_input.eval_tasksets[0].path", "13"),
    ], answer.text


@pytest.mark.parametrize(("size", "epochs", "left"), [(4, 2, 0), (3, 1, 2), (3, 2, 1), (5, 3, 4)])
async def test_rows_that_fill_no_batch_are_named(
    client: httpx.AsyncClient, tmp_path: Path, size: int, epochs: int, left: int
) -> None:
    buffer = {"batch_size": size, "total_steps": None, "total_epochs": epochs}
    answer = await asked(client, CHECK, file_of(tmp_path, {"buffer": buffer}))
    assert answer.status_code == 200, answer.text
    warnings = [each for each in answer.json()["warnings"] if "fill no batch" in each]
    want = f"the last {left} of {8 * epochs} rows of {epochs} epoch"
    assert (len(warnings), not left or want in warnings[0]) == (left > 0, True), warnings


@pytest.mark.parametrize(("ratio", "said"), [(0.2, True), (0.25, False)])
async def test_a_warm_up_of_no_step_is_named_once_the_rows_are_counted(
    client: httpx.AsyncClient, tmp_path: Path, ratio: float, said: bool
) -> None:
    """Two epochs of eight rows are four steps of four."""
    changes = {
        "buffer": {"batch_size": 4, "total_steps": None, "total_epochs": 2},
        "algorithm": {"optimizer": {"lr_warmup_steps_ratio": ratio}},
    }
    answer = await asked(client, CHECK, file_of(tmp_path, changes))
    assert answer.status_code == 200, answer.text
    want = f"lr_warmup_steps_ratio {ratio} is less than one of 4 steps: there is no warm-up"
    assert any(want in text for text in answer.json()["warnings"]) is said
