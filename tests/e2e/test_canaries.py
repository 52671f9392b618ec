"""Secrets of the daemon's environment and of refused files, looked for in everything that a run leaves or says."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import asyncpg
import httpx
import psutil
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import ConsumerRecord
from servers import in_thread
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.servers.otlp_receiver import otlp_receiver
from synthetic.until import PATIENCE_S

from rftd.streams.kafka.partitions import Names

CANARY: Final = "c4n4ry"
SECRETS: Final = {
    name: f"{CANARY}-{name.lower()}-7f3a"
    for name in (
        "RFTD_TOKEN",
        "PGPASSWORD",
        "OPENAI_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "TINKER_API_KEY",
        "RFTD_SERVE_KEY",
        "RFTD_KAFKA_PASSWORD",
        "WANDB_API_KEY",
        "A_NAME_THAT_NOBODY_KNOWS",
    )
}
REFUSED: Final = (
    {"explorer": {"auxiliary_models": [{"name": "j", "engine_type": "external", "api_key": f"{CANARY}-literal-0001"}]}},
    {"explorer": {"env_vars": {"HF_TOKEN": f"{CANARY}-literal-0002"}}},
    {"monitor": {"monitor_args": {"api_key": f"{CANARY}-literal-0003"}}},
    {"explorer": {"auxiliary_models": [{"base_url": f"http://u:{CANARY}-literal-0004@h.example/v1"}]}},
)
"""Secrets as literals, which no answer may repeat and no event may keep."""
PAGES: Final = (
    *("/readyz?verbose=1", "/metrics", "/version", "/openapi.json"),
    *("/v1/experiments", "/v1/experiments/{name}", "/v1/experiments/{name}/events", "/v1/experiments/{name}/why"),
)


@pytest.mark.e2e
def test_a_secret_of_the_daemon_is_nowhere_but_in_its_own_environment(
    tmp_path: Path, pair: dict[str, str], request: pytest.FixtureRequest
) -> None:
    with otlp_receiver() as receiver:
        environ = {**SECRETS, **pair, "RFTD_TRACE_RATIO": "1"}
        scene = Scene(tmp_path, "--traces", receiver.url, environ=environ)
        with scene.host:
            answers = [refused(scene, changes) for changes in REFUSED]
            name = scene.submit(EXPERIMENT, *SHORT, "buffer.total_steps=30", "monitor.monitor_type=jsonl")
            environments = {"tracker": environment_of_tracker(scene.host.pid)}
            scene.until_step(name, 2)
            page = scene.page(name)
            assert page is not None
            workers = {worker.role: worker.pid for worker in page.workers if worker.state == "live"}
            environments |= {role: dict(psutil.Process(pid).environ()) for role, pid in workers.items()}
            assert scene.until_ended(name).experiment.summary.state == "completed"
            answers += [scene.get(path.format(name=name)).text for path in PAGES]
            answers.append(scene.rftd("logs", name, "--json").out)
    assert set(environments) == {"explorer", "trainer", "tracker"}
    assert not [role for role, environ in environments.items() if CANARY in str(environ)]
    assert not [answer for answer in answers if CANARY in answer]
    assert receiver.bodies
    assert not [span for span in receiver.spans if CANARY in f"{span!r}{span.told}"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    # Once more as they were before the log compressed them.
    values = [record.head + record.value for record in scene.records()]
    assert [value for value in values if name.encode() in value], "the records are those of the run"
    assert not [value for value in values if CANARY.encode() in value]
    if pair:
        records = in_thread(kafka_records(request.getfixturevalue("kafka_broker").bootstrap, pair["RFTD_KAFKA"]))
        assert {record.topic.rpartition(".")[2] for record in records} >= {"experiments", "experiences", "workers"}
        assert [record for record in records if name.encode() in content_of(record)], "the records are those of the run"
        assert not [record.topic for record in records if CANARY.encode() in content_of(record)]
        rows = in_thread(table_rows(pair["RFTD_POSTGRES"]))
        assert [row for row in rows if name in row], "the tables are those of the run"
        assert not [row for row in rows if CANARY in row or CANARY.encode().hex() in row]


async def kafka_records(bootstrap: str, url: str) -> list[ConsumerRecord[bytes | None, bytes | None]]:
    """Every record of every topic of a log, as any reader of the broker gets it."""
    names = Names(url.partition("prefix=")[2])
    records: list[ConsumerRecord[bytes | None, bytes | None]] = []
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(list(names.every))
        ends = await consumer.end_offsets(names.every)
        while any([await consumer.position(name) < end for name, end in ends.items()]):
            for messages in (await consumer.getmany(timeout_ms=500)).values():
                records += messages
    return records


def content_of(record: ConsumerRecord[bytes | None, bytes | None]) -> bytes:
    """The key, the value and all headers of a record."""
    headers = [part for name, value in record.headers for part in (name.encode(), value or b"")]
    return b"\n".join([record.key or b"", record.value or b"", *headers])


async def table_rows(url: str) -> list[str]:
    """Every row of the daemon's tables in a Postgres, as text; bytes are in hexadecimal digits."""
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'rftd'")
        rows: list[str] = []
        for (table,) in tables:
            rows += [row for (row,) in await connection.fetch(f'SELECT (t.*)::text FROM rftd."{table}" AS t')]
        return rows
    finally:
        await connection.close()


def environment_of_tracker(daemon: int) -> dict[str, str]:
    """The environment of the process that follows the run for its tracker, once it is there."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        for process in psutil.Process(daemon).children():
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                # Until it has become the program it is a copy of the daemon, with the daemon's environment.
                if "tracker" in process.cmdline():
                    return dict(process.environ())
        time.sleep(0.01)
    raise AssertionError("no tracker was started")


def refused(scene: Scene, changes: dict[str, object]) -> str:
    """The daemon's refusal of a submission with these changes."""
    answer = httpx.post(
        f"{scene.host.url}/v1/experiments",
        json={"config": {"name": "refused", **changes}},
        headers=scene.host.headers,
        timeout=30.0,
        trust_env=False,
    )
    assert 400 <= answer.status_code < 500
    return answer.text
