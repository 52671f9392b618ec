"""`rftd serve`: the daemon, in one process."""

from __future__ import annotations

import click

from rftd.daemon.settings import Duration, Settings, data_folder, shared_options


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need RFTD_TOKEN.")
@click.option("--port", type=click.IntRange(0, 65535), default=7070, show_default=True, help="0 picks a free one.")
@click.option("--log-format", type=click.Choice(["console", "json"]), default="console", show_default=True)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@click.option(
    "--worker-lost-after",
    "lost_after_s",
    type=Duration(),
    default="15s",
    show_default=True,
    metavar="TIME",
    help="End and restart a worker that is silent for so long; it sends a heartbeat every second.",
)
@shared_options
@click.pass_obj
def command(settings: Settings, host: str, port: int, log_format: str, log_level: str, lost_after_s: float) -> None:
    """Run the daemon: embedded log and state under --data (default ./.rftd), workers as processes beside it."""
    import asyncio
    import os
    from pathlib import Path

    from rftd.daemon.service import ServiceOptions
    from rftd.ops.logs import configure

    configure(level=log_level, as_json=log_format == "json")
    options = ServiceOptions(
        data=Path(data_folder(settings)),
        host=host,
        port=port,
        token=os.environ.get("RFTD_TOKEN") or None,
        worker_lost_after_s=lost_after_s,
    )
    asyncio.run(_serve(options))


async def _serve(options: object) -> None:
    import asyncio
    import signal

    import httpx

    from rftd.daemon.service import ServiceOptions, running, tune_collector
    from rftd.ops.clock import SystemClock
    from rftd.ops.ids import SystemIds
    from rftd.ops.logs import logger

    assert isinstance(options, ServiceOptions)
    tune_collector()
    clock = SystemClock()
    began_s = clock.monotonic_s()
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            raise SystemExit(130)  # the second signal: now
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    async with running(options, clock=clock, ids=SystemIds(clock), logger=logger(role="daemon")) as service:
        async with httpx.AsyncClient(timeout=10.0, trust_env=False) as client:
            answer = await client.get(f"{service.url}/readyz")
            answer.raise_for_status()
        click.echo(f"rftd: embedded log and state under {service.folder.root}: for one machine")
        click.echo(f"  api      {service.url}/openapi.json     metrics  {service.url}/metrics")
        click.echo(f"ready in {clock.monotonic_s() - began_s:.1f} s at {service.url}   next: rftd submit exp.yaml")
        await stop.wait()
        click.echo("draining: workers finish what is under way; again to stop now", err=True)
