"""`rftd stack`: real servers, found again, killed, started again, with their data."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from synthetic.daemon.command_line import Said

pytestmark = pytest.mark.e2e

RFTD = (sys.executable, "-P", "-m", "rftd.daemon")


def rftd(data: Path, *arguments: str) -> Said:
    done = subprocess.run(
        [*RFTD, *arguments, "--data", str(data)], capture_output=True, text=True, timeout=200, check=False
    )
    return Said(done.returncode, done.stdout, done.stderr)


def told(data: Path, *arguments: str) -> Any:
    said = rftd(data, *arguments, "--json")
    assert said.status == 0, said
    return json.loads(said.out)


async def produce(bootstrap: str, *values: bytes) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic("kept", 1, 1)])
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True) as producer:
        for value in values:
            await producer.send_and_wait("kept", value, partition=0)


async def consumed(bootstrap: str) -> list[bytes | None]:
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        partition = TopicPartition("kept", 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        end = (await consumer.end_offsets([partition]))[partition]
        return [(await consumer.getone()).value for _ in range(end)]


async def sql(url: str, statement: str, pass_file: str) -> Any:
    connection = await asyncpg.connect(url, passfile=pass_file, timeout=20)
    try:
        return await connection.fetch(statement)
    finally:
        await connection.close()


def test_up_is_idempotent_and_survives_sigkill_with_its_data(own_servers: Path) -> None:
    assert rftd(own_servers, "stack", "status").status == 1
    first = told(own_servers, "stack", "up")
    again = told(own_servers, "stack", "up")
    assert again == first
    assert rftd(own_servers, "stack", "status").status == 0
    kafka, url, pass_file = first["kafka"]["url"], first["postgres"]["url"], first["postgres"]["pass_file"]
    asyncio.run(produce(kafka, b"a", b"b"))
    asyncio.run(sql(url, "CREATE TABLE kept AS SELECT 7 AS n", pass_file))

    for part in ("kafka", "postgres"):
        os.kill(first[part]["pid"], signal.SIGKILL)
    psutil.wait_procs(
        [psutil.Process(first[part]["pid"]) for part in ("kafka", "postgres") if psutil.pid_exists(first[part]["pid"])],
        timeout=30,
    )
    assert rftd(own_servers, "stack", "status").status == 1
    third = told(own_servers, "stack", "up")
    assert third["kafka"]["url"] == kafka
    assert third["postgres"]["url"] == url
    assert third["kafka"]["pid"] != first["kafka"]["pid"]
    assert asyncio.run(consumed(kafka)) == [b"a", b"b"]
    assert [row["n"] for row in asyncio.run(sql(url, "SELECT n FROM kept", pass_file))] == [7]

    assert told(own_servers, "stack", "down")["kafka"]["state"] == "stopped"
    assert not psutil.pid_exists(third["kafka"]["pid"])
    assert not psutil.pid_exists(third["postgres"]["pid"])
    assert rftd(own_servers, "stack", "down").status == 0
    told(own_servers, "stack", "up")
    assert asyncio.run(consumed(kafka)) == [b"a", b"b"]
    told(own_servers, "stack", "down", "--delete")
    assert not list((own_servers / "stack").iterdir())


def test_no_command_prints_the_password_and_the_printed_line_works(own_servers: Path) -> None:
    told(own_servers, "stack", "up")
    pass_file = own_servers / "stack" / "postgres" / "pgpass"
    password = pass_file.read_text().strip().rpartition(":")[2]
    assert len(password) > 20
    assert pass_file.stat().st_mode & 0o077 == 0
    said = rftd(own_servers, "stack", "up")
    assert said.status == 0
    assert password not in said.out + said.err + rftd(own_servers, "stack", "status", "--json").out
    running = (
        " ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]) if each.pid != os.getpid()
    )
    assert not [line for line in running if password in line]

    (line,) = (line for line in said.out.splitlines() if line.startswith("next: "))
    assignment, *words = shlex.split(line.removeprefix("next: "))
    options = dict(zip(words[2::2], words[3::2], strict=True))
    assert words[:2] == ["rftd", "serve"]
    assert set(options) == {"--data", "--kafka", "--postgres"}
    assert options["--data"] == str(own_servers)
    rows = asyncio.run(sql(options["--postgres"], "SELECT current_user", assignment.partition("=")[2]))
    assert [tuple(row) for row in rows] == [("rftd",)]
    with pytest.raises(asyncpg.InvalidPasswordError):
        asyncio.run(sql(options["--postgres"].replace("rftd@", "rftd:wrong@"), "SELECT 1", "/dev/null"))


@pytest.mark.parametrize("server", ["kafka", "postgres"])
def test_run_stands_in_the_foreground_and_takes_over_what_was_left(own_servers: Path, server: str) -> None:
    command = [*RFTD, "stack", "run", server, "--data", str(own_servers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline().startswith(f"{server} ready at ")
        left = told_status(own_servers)[server]["pid"]
        first.kill()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as second:
        assert second.stdout is not None
        assert second.stdout.readline().startswith(f"{server} ready at ")
        assert told_status(own_servers)[server]["pid"] == left
        second.terminate()
        assert second.wait(90) == 0
    assert not psutil.pid_exists(left)

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as third:
        assert third.stdout is not None
        assert third.stdout.readline().startswith(f"{server} ready at ")
        os.kill(told_status(own_servers)[server]["pid"], signal.SIGKILL)
        _, err = third.communicate(timeout=240)
        assert third.returncode == 4
        assert "ended by itself" in err


def test_run_can_be_told_to_end_while_it_starts(own_servers: Path) -> None:
    command = [*RFTD, "stack", "run", "kafka", "--data", str(own_servers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        folder = own_servers / "stack" / "kafka"
        while not (folder / "start.lock").exists():
            assert process.poll() is None
        process.terminate()
        out, _ = process.communicate(timeout=150)
    assert process.returncode == 0
    assert "ready" not in out
    assert told_status(own_servers)["kafka"]["pid"] is None


def told_status(data: Path) -> Any:
    return json.loads(rftd(data, "stack", "status", "--json").out)
