"""The whole daemon: its workers, the streams of its log with the lag of the tables, its machine and its checks."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.route import After, Daemon, Limit, read
from rftd.storage.queries.weights import WorkerRow

_TAG = "system"
"""Chapter of the OpenAPI document with these routes."""
WorkerState = Literal["live", "stopped", "lost"]
"""State of a worker as recorded by events; whether it is busy is known from heartbeats alone."""


class WorkerList(msgspec.Struct, frozen=True, kw_only=True):
    """Workers of all experiments, the newest first."""

    items: list[WorkerRow]
    names: dict[str, str]
    """Names of the workers' experiments by their ids."""


class StreamRow(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of the log; the numbers are sums over its partitions."""

    stream: str
    partitions: int
    records: int
    """Sum of the next offsets: records appended since the log began, on Kafka with the marks of transactions."""
    applied: int | None
    """Records read into the tables; null for a stream that no table holds."""
    lag: int | None
    """Records not yet in the tables; null as `applied`."""


class StreamList(msgspec.Struct, frozen=True, kw_only=True):
    """The streams of the log, by name."""

    items: list[StreamRow]


class CheckView(msgspec.Struct, frozen=True, kw_only=True):
    """One check of the daemon's readiness."""

    name: str
    ok: bool
    reason: str
    """The reason of a failure, or a note; empty if all is well."""


class VolumeView(msgspec.Struct, frozen=True, kw_only=True):
    """The volume of the daemon's folder."""

    size_bytes: int
    free_bytes: int


class SystemView(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon, its machine, and what it has to do."""

    version: str
    ready: bool
    checks: list[CheckView]
    cores: int
    load: float
    """Mean number of runnable processes over the last minute."""
    memory_bytes: int
    available_memory_bytes: int
    disk: VolumeView | None
    """None for a daemon without a folder of its own."""
    experiments: dict[str, int]
    """Numbers of experiments by state, without removed ones."""
    live_workers: int
    lag: int
    """Records of the log not yet in the tables."""


@read("/v1/workers", WorkerList, tag=_TAG)
async def workers(
    daemon: Daemon,
    state: Annotated[WorkerState | None, Meta(description="Only workers in this state.")] = None,
    limit: Limit = 200,
    after: After = None,
) -> WorkerList:
    """The workers of all experiments, the newest first."""
    from rftd.storage.queries.weights import newest_workers, worker_names

    async with daemon.read(after) as connection:
        rows = await newest_workers(connection, state=state, limit=limit)
        return WorkerList(items=rows, names=await worker_names(connection, rows))


@read("/v1/streams", StreamList, tag=_TAG)
async def streams(daemon: Daemon) -> StreamList:
    """The streams of the log: numbers of records, and how far the tables are behind."""
    from rftd.streams.log.topics import TOPICS, TRUTH

    heads, applied = await daemon.log.heads(), daemon.applied_offsets()
    folded = {partition.stream for partition in TRUTH}
    rows = []
    for stream, topic in sorted(TOPICS.items()):
        numbers = [partition for partition in heads if partition.stream == stream]
        records = sum(heads[partition].next_offset for partition in numbers)
        read_records = sum(min(applied.get(partition, 0), heads[partition].next_offset) for partition in numbers)
        known = stream in folded
        rows.append(
            StreamRow(
                stream=stream,
                partitions=topic.partitions,
                records=records,
                applied=read_records if known else None,
                lag=records - read_records if known else None,
            )
        )
    return StreamList(items=rows)


@read("/v1/system", SystemView, tag=_TAG)
async def system(daemon: Daemon, after: After = None) -> SystemView:
    """The daemon and its machine: version, checks, processors, memory, disk, experiments by state, workers, lag."""
    import asyncio  # not above: the command line imports this module, and needs no event loop to check a file
    import shutil

    import psutil

    from rftd.storage.queries.experiments import count_states
    from rftd.storage.queries.weights import count_live_workers

    verdict = await daemon.verdict()
    folder = None if daemon.daemon_log is None else daemon.daemon_log.parent
    usage = None if folder is None else await asyncio.to_thread(shutil.disk_usage, folder)
    memory = psutil.virtual_memory()
    lag = sum(row.lag or 0 for row in (await streams.work(daemon)).items)
    async with daemon.read(after) as connection:
        states = await count_states(connection)
        live = await count_live_workers(connection)
    return SystemView(
        version=daemon.version,
        ready=verdict.ok,
        checks=[CheckView(name=check.name, ok=check.ok, reason=check.reason) for check in verdict.checks],
        cores=os.cpu_count() or 1,
        load=os.getloadavg()[0],
        memory_bytes=memory.total,
        available_memory_bytes=memory.available,
        disk=None if usage is None else VolumeView(size_bytes=usage.total, free_bytes=usage.free),
        experiments=states,
        live_workers=live,
        lag=lag,
    )
