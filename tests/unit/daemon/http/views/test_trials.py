"""Looks at a file before its submission: a veRL script as text, first rows with the prompt, and a tried rollout."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from synthetic.daemon.daemon_parts import DaemonParts
from synthetic.daemon.fork_desk import EXPERIMENT
from synthetic.daemon.third_party import install
from synthetic.until import until

from rftd.daemon.config.loading import load_text
from rftd.daemon.text.trials import Trials
from rftd.ops.clock import SystemClock
from rftd.ops.errors import ConflictError, DataError
from rftd.ops.ids import SystemIds
from rftd.workers.hosts.environment import WorkerEnvironment

pytestmark = pytest.mark.anyio
SCRIPT = """
set -x
BATCH=$(cat /etc/hostname)
python3 -m verl.trainer.main_ppo --config-path=/etc --config-name=mine algorithm.adv_estimator=grpo \\
  data.train_files=$HOME/train.parquet actor_rollout_ref.model.path=${oc.env:MODEL} data.train_batch_size=$BATCH
"""
SLOW = """
import os, pathlib, subprocess, sys, time

class Slow:
    def score(self, response, truth, task):
        print("a line on standard output")
        if os.environ.get("SECRET"):
            return 9.0
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        if truth == "6":
            pathlib.Path(__file__).with_name("started").touch()
            time.sleep(600)
        return 0.5
"""


def experiment(folder: Path, **fields: str) -> dict[str, Any]:
    """A configuration of fake engines with five rows in the folder."""
    rows = [json.dumps({"question": f"{a}+{a}=", "answer": str(2 * a)}) for a in range(5)]
    for name in ("train", "eval"):
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    overrides = [f"{name.replace('__', '.')}={text}" for name, text in fields.items()]
    return load_text(EXPERIMENT, "exp.yaml", overrides=overrides, environ={}, cwd=folder).config


async def answered(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(f"/v1/experiments/{path}", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_script_becomes_a_file_by_its_text_and_no_file_or_variable_is_read(client: httpx.AsyncClient) -> None:
    view = await answered(client, "import-verl", text=SCRIPT, take=[3])
    [fault] = [error for error in view["errors"] if "mine" in error["what"]]
    assert "mine.yaml" in fault["what"] or "mine" in fault["what"]
    view = await answered(client, "import-verl", text=SCRIPT.replace("--config-path=/etc --config-name=mine", ""))
    assert view["errors"] == []
    assert "path: ${oc.env:HOME}" in view["text"]
    assert "${oc.env:MODEL}" in view["text"]
    assert "???" in view["text"], "a command of the script is not run"
    assert {line["outcome"] for line in view["lines"]} >= {"mapped"}
    draft = await answered(client, "draft", text=view["text"])
    assert draft["config"]["model"]["model_path"] == "${oc.env:MODEL}"
    refused = await client.post("/v1/experiments/import-verl", json={"text": "x" * (1 << 18)})
    assert refused.status_code == 422
    broken = await answered(client, "import-verl", text="python3 -m verl.trainer.main_ppo 'open")
    assert broken["errors"][0]["where"].startswith("run.sh:1")


async def test_first_rows_are_shown_with_the_prompt_of_a_row(client: httpx.AsyncClient, tmp_path: Path) -> None:
    config = experiment(tmp_path)
    view = await answered(client, "first-rows", config=config, row=2, rows=2)
    assert (view["taskset"], view["rows"], view["row"]) == ("sums", 5, 2)
    assert (view["prompt"], view["prompt_tokens"], view["answer"]) == ("2+2=", 4, "4")
    assert [json.loads(row)["answer"] for row in view["items"]] == ["4", "6"]
    learned = await answered(client, "first-rows", config=config, taskset="warmup", rows=1)
    assert (learned["taskset"], learned["answer"]) == ("warmup", "0")
    for body, words in (
        ({"taskset": "absent"}, "has no taskset 'absent'"),
        ({"row": 77}, "77"),
    ):
        refused = await client.post("/v1/experiments/first-rows", json={"config": config, **body}, timeout=120)
        assert refused.status_code == 422
        assert words in refused.text
    (tmp_path / "train.jsonl").write_text("no json\n")
    refused = await client.post("/v1/experiments/first-rows", json={"config": config}, timeout=120)
    assert "train.jsonl" in refused.json()["detail"] + refused.json().get("where", "")


async def test_a_try_counts_as_a_submission_and_appends_nothing(parts: DaemonParts, tmp_path: Path) -> None:
    async with parts.client() as client:
        before = (await client.get("/v1/experiments")).json()["items"]
        tried = await answered(client, "try", config=experiment(tmp_path), row=3)
        assert (tried["row"], tried["prompt"], tried["truth"], tried["error"]) == (3, "3+3=", "6", "")
        [call] = tried["calls"]
        assert bytes(call["prompt_ids"]).decode() == "3+3="
        assert (await client.get("/v1/experiments")).json()["items"] == before


async def test_a_trial_ends_with_all_its_processes_and_has_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "rftd_slow", SLOW, {"rftd.rewards": {"slow": "rftd_slow:Slow"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    fields = {"buffer__explorer_input__taskset__default_reward_fn_type": "slow", "stages": "[]"}
    spec = load_text(
        EXPERIMENT,
        "exp.yaml",
        overrides=[f"{name.replace('__', '.')}={text}" for name, text in fields.items()],
        environ={},
        cwd=tmp_path,
    ).spec
    experiment(tmp_path)
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path), "SECRET": "x"}
    trials = Trials(SystemIds(SystemClock()), WorkerEnvironment(environ, pass_env=("PYTHONPATH",)))
    rollout = await trials.rollout(spec, None, 1, 0, ())
    assert (rollout.reward, rollout.error) == (0.5, "")
    slow = asyncio.ensure_future(trials.rollout(spec, None, 3, 0, ()))
    await asyncio.sleep(0)
    with pytest.raises(ConflictError, match="another rollout"):
        await trials.rollout(spec, None, 1, 0, ())
    await until((tmp_path / "started").exists)
    assert ours(tmp_path)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    monkeypatch.setattr("rftd.ops.limits.TRIAL_ROLLOUT_S", 0.0)
    with pytest.raises(DataError, match="no answer within"):
        await trials.rollout(spec, None, 3, 0, ())
    assert ours(tmp_path) == []


def ours(folder: Path) -> list[int]:
    """The processes of trials whose parts lie in the folder."""
    environs = [(process.pid, process.info["environ"] or {}) for process in psutil.process_iter(["environ"])]
    return [pid for pid, environ in environs if environ.get("PYTHONPATH") == str(folder) and "RFTD_WORKER" in environ]
