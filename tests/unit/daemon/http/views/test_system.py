"""Workers, streams and the machine of a whole daemon."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from sqlalchemy import text
from synthetic.daemon.daemon_parts import DaemonParts

from rftd.daemon.http.views.machine import MachineView
from rftd.daemon.http.views.system import StreamList, SystemView, WorkerList
from rftd.daemon.http.views.wire import from_wire
from rftd.daemon.observe.doctor.sandboxes import check_sandboxes

pytestmark = pytest.mark.anyio


async def test_workers_of_all_experiments_come_newest_first(client: httpx.AsyncClient, parts: DaemonParts) -> None:
    listed = from_wire((await client.get("/v1/workers")).json(), WorkerList)
    started = [worker.started_ns for worker in listed.items]
    assert started == sorted(started, reverse=True)
    assert {worker.experiment for worker in listed.items if worker.experiment} == set(listed.names)
    assert "small" in listed.names.values()
    page = (await client.get("/v1/experiments/small")).json()
    assert {worker["id"] for worker in page["workers"]} <= {worker.id for worker in listed.items}
    for state in ("live", "stopped", "lost"):
        some = from_wire((await client.get("/v1/workers", params={"state": state})).json(), WorkerList).items
        assert [worker.id for worker in some] == [worker.id for worker in listed.items if worker.state == state]
    assert len((await client.get("/v1/workers", params={"limit": 1})).json()["items"]) == 1
    assert (await client.get("/v1/workers", params={"state": "asleep"})).status_code == 422


async def test_the_lag_of_a_stream_is_what_the_tables_have_not_read(
    client: httpx.AsyncClient, parts: DaemonParts
) -> None:
    heads = await parts.log.heads()
    streams = from_wire((await client.get("/v1/streams")).json(), StreamList).items
    assert sum(row.records for row in streams) == sum(head.next_offset for head in heads.values())
    assert all(row.lag == 0 for row in streams if row.lag is not None), streams
    assert {row.stream: row.lag for row in streams}["rftd.heartbeats"] is None
    written = len(parts.run.recorder.drafts)
    parts.run.explore()
    positions = await parts.log.append(parts.run.recorder.drafts[written:])
    lag = {row.stream: row.lag for row in from_wire((await client.get("/v1/streams")).json(), StreamList).items}
    assert 0 <= sum(number or 0 for number in lag.values()) <= len(positions)
    for position in positions:
        await parts.projector.wait_for(position.partition, position.offset, 10.0)
    behind = from_wire((await client.get("/v1/streams")).json(), StreamList).items
    assert sum(row.lag or 0 for row in behind) == 0


async def test_the_system_counts_experiments_workers_and_checks(client: httpx.AsyncClient) -> None:
    system = from_wire((await client.get("/v1/system")).json(), SystemView)
    experiments = (await client.get("/v1/experiments")).json()["items"]
    assert sum(system.experiments.values()) == len(experiments)
    live = (await client.get("/v1/workers", params={"state": "live"})).json()["items"]
    assert system.live_workers == len(live)
    assert system.cores > 0
    assert 0 < system.available_memory_bytes < system.memory_bytes
    assert system.ready == all(check.ok for check in system.checks)


async def test_the_machine_says_what_the_doctor_says(client: httpx.AsyncClient) -> None:
    machine = from_wire((await client.get("/v1/machine")).json(), MachineView)
    assert [(device.kind, device.memory_bytes) for device in machine.devices] == [("cpu", 1 << 30)]
    assert machine.no_gpu
    findings = {finding.check: finding for finding in [*machine.engines, *machine.sandboxes]}
    assert {"engine torch", "engine vllm", "launcher ray", "sandbox namespaces", "sandbox docker"} <= set(findings)
    # The host of these parts has no package.
    assert findings["engine torch"].status == "warn"
    assert "pip install" in findings["engine torch"].fix
    assert machine.sandboxes == await asyncio.to_thread(check_sandboxes)


async def test_an_experiment_whose_submission_is_not_in_the_tables_stops_no_read(
    client: httpx.AsyncClient, parts: DaemonParts
) -> None:
    async with parts.engine.begin() as connection:
        await connection.execute(text("UPDATE experiments SET name = NULL, state = 'running'"))
    for path in ("/v1/machine", "/v1/pipelines"):
        assert (await client.get(path)).status_code == 200, path
