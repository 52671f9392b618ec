"""`rftd why`: what each role of an experiment does or waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rftd.daemon.settings import Settings, data_folder, kafka_option, shared_options
from rftd.daemon.verbs.names import experiment_argument
from rftd.ops.decoding import converted

if TYPE_CHECKING:
    from rftd.daemon.client.replies import Why


@click.command("why")
@experiment_argument
@kafka_option
@shared_options
@click.pass_obj
def command(settings: Settings, name: str, kafka: str | None) -> None:
    """What each role of experiment NAME does or waits for, since when, and what would unblock it; worst first.

    Without a daemon the log itself is read, as far as --data or --kafka names one.
    """
    from pathlib import Path

    from rftd.daemon.client.client import Client
    from rftd.ops.errors import NotFoundError, UnreachableError

    try:
        with Client(settings) as client:
            answer = client.why(name)
        value, plain = answer.value, answer.plain()
    except UnreachableError as away:
        if kafka is None and not (Path(data_folder(settings)) / "log").is_dir():
            raise
        try:
            value, plain = _offline(settings, name, kafka)
        except NotFoundError as error:
            raise error from away
    if settings.machine_readable:
        from rftd.daemon.output.data import emit

        emit(plain, settings)
        return
    from rftd.daemon.output.why import render

    render(value, settings)


def _offline(settings: Settings, name: str, kafka: str | None) -> tuple[Why, Any]:
    import asyncio
    from pathlib import Path

    from rftd.daemon.api.wire import to_wire
    from rftd.daemon.client import replies
    from rftd.daemon.data_folder import DataFolder
    from rftd.daemon.log_source import log_to_read
    from rftd.daemon.why.offline import why_offline
    from rftd.ops.clock import SystemClock
    from rftd.ops.ids import SystemIds

    async def read() -> Any:
        folder, clock = DataFolder(Path(data_folder(settings))), SystemClock()
        async with log_to_read(folder, kafka, clock=clock, ids=SystemIds(clock)) as log:
            return to_wire(await why_offline(log, name, clock=clock))

    plain = asyncio.run(read())
    return converted(plain, replies.Why), plain
