"""`rftd worker explorer|trainer`: one worker process. The daemon starts them; so can you, on any machine."""

from __future__ import annotations

import click


@click.group("worker")
def command() -> None:
    """Run one worker process of an experiment."""


@command.command()
@click.option("--log", "log_url", required=True, help="The log: unix:PATH.")
@click.option("--experiment", required=True, help="Id of the experiment.")
@click.option("--slot", type=click.IntRange(0, 15), required=True, help="The slot whose leases it takes.")
def explorer(log_url: str, experiment: str, slot: int) -> None:
    """Explore: run rollouts of leased tasks."""
    _run("explorer", log_url, experiment, slot)


@command.command()
@click.option("--log", "log_url", required=True, help="The log: unix:PATH.")
@click.option("--experiment", required=True, help="Id of the experiment.")
def trainer(log_url: str, experiment: str) -> None:
    """Train: execute planned batches."""
    _run("trainer", log_url, experiment, -1)


def _run(role: str, log_url: str, experiment: str, slot: int) -> None:
    import asyncio
    import signal
    from pathlib import Path
    from uuid import UUID

    from rftd.ops.clock import SystemClock
    from rftd.ops.errors import UsageError
    from rftd.ops.ids import SystemIds
    from rftd.ops.logs import configure, logger
    from rftd.streams.socket.client import SocketLog
    from rftd.workers.process import run_explorer, run_trainer

    scheme, _, path = log_url.partition(":")
    if scheme != "unix" or not path:
        raise UsageError(f"no log at {log_url!r}", field="--log", fix="give unix:PATH")
    try:
        id = UUID(experiment)
    except ValueError:
        raise UsageError(f"{experiment!r} is no id", field="--experiment", fix="see rftd ls --json") from None

    async def work() -> None:
        clock = SystemClock()
        ids = SystemIds(clock)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        log = await SocketLog.connect(Path(path))
        bound = logger(role=role, slot=slot)
        try:
            if role == "explorer":
                await run_explorer(log, id, slot, stop, clock=clock, ids=ids, logger=bound)
            else:
                await run_trainer(log, id, stop, clock=clock, ids=ids, logger=bound)
        finally:
            await log.close()

    configure()
    asyncio.run(work())
