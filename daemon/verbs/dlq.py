"""`rftd dlq`: what was set aside, and what is to become of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rftd.daemon.settings import Settings, data_folder, kafka_option, shared_options
from rftd.ops.decoding import converted

if TYPE_CHECKING:
    from collections.abc import Callable

    from rftd.daemon.dlq.letter import Dead
    from rftd.streams.log import EventLog

WHICH = """ID is one of `rftd dlq ls`, NAME/task/STAGE.SEQUENCE, or 8 or more hex digits of a group's id."""


@click.group("dlq")
def dlq() -> None:
    """Dead letters: records that no reader could use, and tasks of which too few rollouts succeeded."""


@dlq.command("ls")
@click.option("--experiment", metavar="NAME", help="Only tasks of this one.")
@click.option("--all", "everything", is_flag=True, help="Those that were retried or dropped too.")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Most lines.")
@click.option("--offset", type=click.IntRange(0), default=0, help="Skip so many.")
@kafka_option
@shared_options
@click.pass_obj
def ls(
    settings: Settings, experiment: str | None, everything: bool, limit: int, offset: int, kafka: str | None
) -> None:
    """List what is open, newest first. Without a daemon the log itself is read."""

    from rftd.daemon.client import replies
    from rftd.daemon.client.client import Client
    from rftd.ops.errors import UnreachableError

    try:
        with Client(settings) as client:
            plain = client.dead_letters(experiment=experiment, all=everything, limit=limit, offset=offset).plain()
    except UnreachableError as away:

        async def of(log: EventLog, dead: list[Dead]) -> Any:
            from rftd.daemon.dlq.gathering import listed
            from rftd.daemon.supervisor.registry import find_entry

            id = (await find_entry(log, experiment)).id if experiment else None
            return listed(dead, everything=everything, experiment=id, limit=limit, offset=offset)

        plain = _offline(settings, kafka, of, away)
    if settings.machine_readable:
        from rftd.daemon.output.data import emit

        emit(plain, settings)
        return
    from rftd.daemon.output.dlq import lines

    lines(converted(plain, replies.DeadLetters), settings, everything=everything)


@dlq.command("show", help=f"One dead letter, with the record or the attempts behind it.\n\n{WHICH}")
@click.argument("id")
@kafka_option
@shared_options
@click.pass_obj
def show(settings: Settings, id: str, kafka: str | None) -> None:
    """One of them."""

    from rftd.daemon.client import replies
    from rftd.daemon.client.client import Client
    from rftd.ops.errors import UnreachableError

    try:
        with Client(settings) as client:
            plain = client.dead_letter(id).plain()
    except UnreachableError as away:

        async def of(log: EventLog, dead: list[Dead]) -> Any:
            from rftd.daemon.dlq.gathering import meant
            from rftd.daemon.dlq.page import page_of

            return await page_of(log, meant(dead, id))

        plain = _offline(settings, kafka, of, away)
    if settings.machine_readable:
        from rftd.daemon.output.data import emit

        emit(plain, settings)
        return
    from rftd.daemon.output.dlq import page

    page(converted(plain, replies.DeadLetterPage), settings)


@dlq.command("retry", help=f"Let one take effect after all: a failed task is given out once more.\n\n{WHICH}")
@click.argument("id")
@click.option("--reason", default="", help="Kept with the event.")
@click.option("--request-id", metavar="ID", help="Sent again with the same id, the command changes nothing.")
@shared_options
@click.pass_obj
def retry(settings: Settings, id: str, reason: str, request_id: str | None) -> None:
    """A failed task gets a fresh bound of attempts."""
    _decide(settings, "retry", id, reason, request_id)


@dlq.command("drop", help=f"Take one from the list: somebody looked at it.\n\n{WHICH}")
@click.argument("id")
@click.option("--reason", required=True, help="Why it needs no more attention; kept with the event.")
@click.option("--request-id", metavar="ID", help="Sent again with the same id, the command changes nothing.")
@shared_options
@click.pass_obj
def drop(settings: Settings, id: str, reason: str, request_id: str | None) -> None:
    """It stays in the log."""
    _decide(settings, "drop", id, reason, request_id)


def _decide(settings: Settings, verdict: str, id: str, reason: str, request_id: str | None) -> None:
    import getpass

    from rftd.daemon.client.client import Client
    from rftd.daemon.verbs.submit import new_id

    try:
        by = getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        by = ""
    with Client(settings) as client:
        answer = client.decide(verdict, id, by=by, reason=reason, request_id=request_id or new_id())
    if settings.machine_readable:
        from rftd.daemon.output.data import emit

        emit(answer.plain(), settings)
    elif settings.verbosity >= 0:
        click.echo(f"{answer.value.id}  {'already ' if answer.value.already else ''}{answer.value.state}")


def _offline(settings: Settings, kafka: str | None, of: Callable[..., Any], away: Exception) -> Any:
    """What `of` answers from the log that --data or --kafka names; raises `away` if they name none."""
    import asyncio
    from pathlib import Path

    from rftd.daemon.api.wire import to_wire
    from rftd.daemon.data_folder import DataFolder
    from rftd.daemon.dlq.offline import dead_offline
    from rftd.daemon.log_source import log_to_read
    from rftd.ops.clock import SystemClock
    from rftd.ops.ids import SystemIds

    if kafka is None and not (Path(data_folder(settings)) / "log").is_dir():
        raise away

    async def read() -> Any:
        folder, clock = DataFolder(Path(data_folder(settings))), SystemClock()
        async with log_to_read(folder, kafka, clock=clock, ids=SystemIds(clock)) as log:
            return to_wire(await of(log, await dead_offline(log)))

    return asyncio.run(read())
