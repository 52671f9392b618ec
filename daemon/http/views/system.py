"""The whole daemon: its workers, the streams of its log with the lag of the tables, its machine and its checks."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.alerts import AlertList
from rftd.daemon.http.views.route import After, Daemon, Limit, read
from rftd.storage.queries.weights import WorkerRow

_TAG = "system"
"""Chapter of the OpenAPI document with these routes."""
WorkerState = Literal["live", "stopped", "lost"]
"""State of a worker as recorded by events; whether it is busy is known from heartbeats alone."""


class WorkerList(msgspec.Struct, frozen=True, kw_only=True):
    """Workers of all experiments, the newest first."""

    items: list[WorkerRow]
    """The workers, the newest first."""
    names: dict[str, str]
    """Names of the workers' experiments by their ids."""


class StreamRow(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of the log; the numbers are sums over its partitions."""

    stream: str
    """Name of the stream."""
    partitions: int
    """Number of partitions of the stream."""
    records: int
    """Sum of the next offsets: records appended since the log began, on Kafka with the marks of transactions."""
    applied: int | None
    """Records read into the tables; null for a stream that no table holds."""
    lag: int | None
    """Records not yet in the tables; null as `applied`."""


class StreamList(msgspec.Struct, frozen=True, kw_only=True):
    """The streams of the log, by name."""

    items: list[StreamRow]
    """The streams of the log, ordered by name."""


class RunPipeline(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline of a live experiment's present stage."""

    experiment: str
    """Id of the experiment."""
    name: str
    """Name of the experiment."""
    stage: str
    """Name of the stage."""
    kind: Literal["task", "experience"]
    """Pipeline of rows before the stage, or of finished groups."""
    operators: list[str]
    """Names of the operators, in order."""
    waiting_for: str
    """Groups without a verdict, in words; empty if there are none."""


class PipelineList(msgspec.Struct, frozen=True, kw_only=True):
    """The pipelines of experiments that run on this daemon."""

    items: list[RunPipeline]
    """The pipelines, by experiment."""


class CheckView(msgspec.Struct, frozen=True, kw_only=True):
    """One check of the daemon's readiness."""

    name: str
    """Name of the check, such as `disk`."""
    ok: bool
    """True if the check passed."""
    reason: str
    """The reason of a failure, or a note; empty if all is well."""


class VolumeView(msgspec.Struct, frozen=True, kw_only=True):
    """The volume of the daemon's folder."""

    size_bytes: int
    """Size of the volume in bytes."""
    free_bytes: int
    """Free space of the volume in bytes."""


class SystemView(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon, its machine, and what it has to do."""

    version: str
    """Release of the daemon."""
    ready: bool
    """True if every check passed."""
    checks: list[CheckView]
    """Checks of the daemon's readiness."""
    cores: int
    """Number of processor cores of the machine."""
    load: float
    """Mean number of runnable processes over the last minute."""
    memory_bytes: int
    """Memory of the machine in bytes."""
    available_memory_bytes: int
    """Memory available to programs in bytes."""
    disk: VolumeView | None
    """None for a daemon without a folder of its own."""
    experiments: dict[str, int]
    """Numbers of experiments by state, without removed ones."""
    live_workers: int
    """Number of live workers over all experiments."""
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


@read("/v1/alerts", AlertList, tag=_TAG)
async def alerts(daemon: Daemon) -> AlertList:
    """The newest alerts of the daemon, and the receivers with the alerts that wait for them."""
    return daemon.alerts()


@read("/v1/pipelines", PipelineList, tag=_TAG)
async def pipelines(daemon: Daemon) -> PipelineList:
    """The pipelines of tasks and experiences of the experiments that run on this daemon."""
    from uuid import UUID

    from rftd.storage.queries.live import live_experiments

    async with daemon.read() as connection:
        live = await live_experiments(connection)
    rows = []
    for experiment in live:
        id = UUID(experiment.id)
        spine = daemon.operations.spine(id)
        if spine is None or spine.spec is None or spine.stage < 0:
            continue
        stage = spine.stage_spec()
        common = {"experiment": experiment.id, "name": experiment.name, "stage": stage.name}
        if (of_tasks := stage.task_pipeline) is not None:
            operators = [operator.name for operator in of_tasks.operators]
            rows.append(RunPipeline(**common, kind="task", operators=operators, waiting_for=""))
        if stage.pipeline:
            operators = [operator.name for operator in stage.pipeline]
            waits = [wait for wait in await daemon.operations.waits(id) if wait.state == "pipeline"]
            waiting_for = waits[0].waiting_for if waits else ""
            rows.append(RunPipeline(**common, kind="experience", operators=operators, waiting_for=waiting_for))
    return PipelineList(items=rows)


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
