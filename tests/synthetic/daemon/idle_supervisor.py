"""A real supervisor behind the API, with no worker started: nothing drives it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from synthetic.daemon.daemon_parts import BASE
from synthetic.daemon.experiment_files import overlaid

from rftd.daemon.http.api.app import make_app
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.streams.memory import MemoryLog
from rftd.workers.devices.host import Host
from rftd.workers.hosts.local import LocalExecutor

FORM = {"prompt_type": "raw", "prompt_key": "question", "response_key": "answer"}
TASKSET = {
    "path": "FOLDER/t.jsonl",
    "format": FORM,
    "default_workflow_type": "simple_workflow",
    "default_reward_fn_type": "exact_match_reward",
}
WHOLE = {
    "project": "p",
    "name": "mine",
    "checkpoint_root_dir": "FOLDER/c",
    "algorithm": {"algorithm_type": "grpo", "repeat_times": 4},
    "model": {"model_path": "FOLDER/m", "max_model_len": 64, "max_prompt_tokens": 32},
    "buffer": {"batch_size": 2, "total_steps": 5, "explorer_input": {"taskset": TASKSET}},
    "explorer": {"rollout_model": {"engine_type": "fake", "engine_num": 1}},
    "trainer": {"trainer_type": "fake"},
    "synchronizer": {"sync_method": "checkpoint"},
}


@asynccontextmanager
async def client_of(tmp_path: Path, log: MemoryLog, host: Host) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a supervisor whose workers are on `host`; nothing drives it, so no worker is started."""
    sums = [(f"{a}+1=", str(a + 1)) for a in range(8)]
    rows = [json.dumps({"question": q, "answer": a, "rule": {"truth": a}}) for q, a in sums]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    (tmp_path / "c" / "p" / "used").mkdir(parents=True)
    (tmp_path / "c" / "p" / "used" / "file").touch()
    clock = SystemClock()
    ids = SystemIds(clock)
    tables = open_database(sqlite_url(tmp_path / "state.db"))
    nobody = LocalExecutor("unix:nowhere", host=lambda: host)
    supervisor = Supervisor(log, nobody, owner=ids.new(), clock=clock, ids=ids, logger=logger())
    app = make_app(operations=supervisor, log=log, engine=tables, projector=Projector(log, tables, clock=clock))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as opened:
        yield opened
    await tables.dispose()


def file_of(folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """The whole file, with these changes."""
    text = json.dumps(overlaid(WHOLE, changes))
    config: dict[str, Any] = json.loads(text.replace("FOLDER", str(folder)))
    return config
