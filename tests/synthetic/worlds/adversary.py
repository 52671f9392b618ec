"""`Gate`: a daemon's API as a submitter without an allowance sees it, and a watch over what may not happen."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from synthetic.daemon.daemon_parts import BASE
from synthetic.log.recorder import Recorder
from synthetic.worlds.desk import published

from rftd.daemon.http.api.app import make_app
from rftd.daemon.http.api.doorkeeper import Doorkeeper
from rftd.daemon.run.requests.request_service import RequestService
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.daemon.trust.allowances import Allowances
from rftd.daemon.trust.keyring import Keyring
from rftd.daemon.trust.quota import Quota
from rftd.daemon.trust.token_file import TokenFile
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.ops.metrics import Metrics
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.streams.events.experiment import ExperimentRejected
from rftd.streams.events.registry import definition_of
from rftd.streams.log.codec import Writer, decode_as, decode_head
from rftd.streams.log.envelope import Draft
from rftd.streams.log.topics import REQUESTS, Partition
from rftd.streams.memory import MemoryLog
from rftd.workers.devices.host import ANY_HOST
from rftd.workers.hosts.local import LocalExecutor

CANARY = "c4n4ry-of-the-daemon"
_BASE: dict[str, Any] = {
    "project": "p",
    "name": "mine",
    "checkpoint_root_dir": "{roots}/c",
    "algorithm": {"algorithm_type": "grpo", "repeat_times": 4},
    "model": {"model_path": "{roots}/m", "max_model_len": 64, "max_prompt_tokens": 32},
    "buffer": {
        "batch_size": 2,
        "total_steps": 5,
        "explorer_input": {
            "taskset": {
                "path": "{roots}/t.jsonl",
                "format": {"prompt_type": "raw", "prompt_key": "question", "response_key": "answer"},
                "default_workflow_type": "simple_workflow",
                "default_reward_fn_type": "exact_match_reward",
            }
        },
    },
    "explorer": {"rollout_model": {"engine_type": "fake", "engine_num": 1}},
    "trainer": {"trainer_type": "fake"},
    "synchronizer": {"sync_method": "checkpoint"},
}


@dataclass
class Gate:
    """One daemon, one submitter, one folder that he may name and one that he may not, and a port that listens."""

    folder: Path
    client: httpx.AsyncClient
    log: MemoryLog
    projector: Projector
    owner_token: str
    listener: str
    supervisor: Supervisor
    desk: RequestService
    connections: list[str] = field(default_factory=list)
    _ids: SystemIds = field(default_factory=lambda: SystemIds(SystemClock()))

    @property
    def places(self) -> Mapping[str, str]:
        """What the placeholders of the corpus mean here."""
        return {
            "roots": str(self.folder / "files"),
            "outside": str(self.folder / "outside"),
            "archives": str(self.folder / "archives"),
            "listener": self.listener,
            "canary": CANARY,
        }

    def here(self, value: Any) -> Any:
        """A value of the corpus with its placeholders filled in."""
        if isinstance(value, str):
            for name, place in self.places.items():
                value = value.replace("{" + name + "}", place)
            return value
        if isinstance(value, dict):
            return {self.here(key): self.here(inner) for key, inner in value.items()}
        return [self.here(inner) for inner in value] if isinstance(value, list) else value

    def build(self, world: list[dict[str, str]]) -> None:
        """Makes the files, folders, links and pipes that a case needs."""
        for entry in self.here(world):
            if "folder" in entry:
                Path(entry["folder"]).mkdir(parents=True, exist_ok=True)
            elif "file" in entry:
                Path(entry["file"]).write_text(entry["text"])
            elif "link" in entry:
                Path(entry["link"]).unlink(missing_ok=True)
                Path(entry["link"]).symlink_to(entry["to"])
            else:
                Path(entry["fifo"]).unlink(missing_ok=True)
                os.mkfifo(entry["fifo"])

    def config(self, change: Mapping[str, Any]) -> dict[str, Any]:
        """The experiment that everybody may submit, with the change of a case."""
        config: dict[str, Any] = json.loads(json.dumps(self.here(_BASE)))
        for path, value in self.here(change).items():
            *outer, last = path.split(".")
            section = config
            for name in outer:
                section = section.setdefault(name, {})
            section[last] = value
        return config

    async def ask(self, case: Mapping[str, Any], parent: UUID | str) -> list[httpx.Response]:
        """The answers to one case; `parent` is forked and archived."""
        change = case["change"]
        path = f"/v1/experiments/{parent}"
        match case.get("ask", "submit"):
            case "archive" | "restore" as command:
                return [await self.client.post(f"{path}/{command}", json=self.here(change))]
            case "fork":
                named = self.here(change)
                body = {"at_step": 0, "name": named.pop("name", "child")}
                body["set"] = [f"{field}={value}" for field, value in named.items()]
                return [await self.client.post(f"{path}/fork", json=body)]
            case _:
                config = self.config(change)
                ways = ("/v1/experiments/check", "/v1/experiments")
                return [await self.client.post(way, json={"config": config}) for way in ways]

    async def request(self, type: str, attributes: Mapping[str, Any]) -> tuple[list[ExperimentRejected], list[str]]:
        """What comes of one record of a producer: the refusals, and the types of all other events."""
        event = {"specversion": "1.0", "type": type, "source": "/producer", **self.here(attributes)}
        before = await self.log.heads()
        await self.log.append([Draft(Partition(REQUESTS, 0), self._ids.new(), b"", json.dumps(event).encode())])
        assert await self.desk.answer(await self.supervisor.known())
        refusals: list[ExperimentRejected] = []
        others: list[str] = []
        for partition, mark in (await self.log.heads()).items():
            start = before[partition].next_offset if partition in before else 0
            if partition.stream == REQUESTS or mark.next_offset == start:
                continue
            for record in await self.log.read(partition, start, max_records=100):
                kind = decode_head(record).type
                if kind == definition_of(ExperimentRejected).name:
                    refusals.append(decode_as(record, ExperimentRejected))
                else:
                    others.append(kind)
        return refusals, others

    async def announce_base(self, experiment: UUID) -> None:
        """Puts an experiment's base model into the log, from which it can be forked; and everything into the tables."""
        recorder = Recorder()
        recorder.write(published(0), experiment)
        await self.log.append(recorder.drafts)
        await self.projector.catch_up()

    def files(self) -> dict[str, tuple[int, int, str]]:
        """Everything below the folder: kind and size, and where a link leads."""
        return {
            str(path): (path.lstat().st_mode, path.lstat().st_size, os.readlink(path) if path.is_symlink() else "")
            for path in self.folder.rglob("*")
            if not path.name.startswith("state.db") and path.is_dir() is False
        }


@asynccontextmanager
async def gate(folder: Path) -> AsyncIterator[Gate]:
    """A real supervisor behind the API; nothing drives it, so no worker is started."""
    (folder / "files").mkdir()
    (folder / "outside").mkdir()
    (folder / "tokens").mkdir()
    rows = [json.dumps({"question": f"{a}+1=", "answer": str(a + 1)}) for a in range(8)]
    (folder / "files" / "t.jsonl").write_text("\n".join(rows))
    (folder / "outside" / "secret.jsonl").write_text(json.dumps({CANARY: CANARY}))
    clock = SystemClock()
    ids = SystemIds(clock)
    log = MemoryLog()
    tables = open_database(sqlite_url(folder / "state.db"))
    supervisor = Supervisor(
        log,
        LocalExecutor("unix:nowhere", host=lambda: ANY_HOST),
        owner=ids.new(),
        clock=clock,
        ids=ids,
        logger=logger(),
        archives=folder / "archives",
        allowances=Allowances(roots=(str(folder / "files"),)),
    )
    keyring = Keyring(folder / "tokens", clock=clock, logger=logger())
    token = TokenFile(folder / "tokens").add("stranger", "submit", created_ns=0, expires_ns=None, quota=Quota())
    projector = Projector(log, tables, clock=clock)
    app = make_app(operations=supervisor, log=log, engine=tables, projector=projector, doorkeeper=Doorkeeper(keyring))
    connections: list[str] = []

    async def connected(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append("came")
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    listener = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with server, httpx.AsyncClient(transport=transport, base_url=BASE, headers=bearer(token)) as client:
        desk = RequestService(
            log,
            supervisor,
            supervisor.known,
            Writer(source="daemon", clock=clock, ids=ids),
            clock=clock,
            logger=logger(),
            metrics=Metrics(version="1"),
        )
        yield Gate(folder, client, log, projector, keyring.tokens.owner_token, listener, supervisor, desk, connections)
    await tables.dispose()
    await log.close()


def bearer(token: str) -> dict[str, str]:
    """The header that shows a token."""
    return {"Authorization": f"Bearer {token}"}
