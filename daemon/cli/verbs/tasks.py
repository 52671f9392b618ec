"""`rftd tasks`: tasks for an experiment with a task queue, while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.table import console_of, table
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiment_argument, reason_option, request_id_option
from rftd.daemon.cli.verbs.rehearsal import dry_run_option, show_consequence
from rftd.daemon.http.views import commands, experiments
from rftd.daemon.http.views import tasks as view

_TASKS: Final = 500
"""Maximum number of tasks sent in one request; the daemon accepts twice as many."""
_SIZE_BYTES: Final = 400_000
"""Maximum total length of one request's lines."""


@click.group("tasks")
def tasks() -> None:
    """List the task queues of an experiment, add tasks to one (`storage_type: queue`), or end it."""


@tasks.command("ls")
@experiment_argument
@shared_options
@click.pass_obj
def ls(settings: Settings, name: str) -> None:
    """List the task queues of experiment NAME: tasks added and tried, and whether more will come."""
    from rftd.daemon.http.client.client import Client

    with Client(settings) as client:
        answer = client.ask(view.queues, name=name)
    if emitted(answer.plain(), settings):
        return
    headers = ("STAGE", "ADDED", "TRIED", "REQUESTS", "ENDED")
    rows = [
        (queue.name, str(queue.added), str(queue.tried), str(queue.requests), "yes" if queue.ended else "no")
        for queue in answer.value.items
    ]
    console_of(settings).print(table(headers, rows, right=headers[1:4]))


@tasks.command("add")
@experiment_argument
@click.argument("file", type=click.File("rb"))
@click.option("--end", is_flag=True, help="Tell the end of the queue behind them.")
@dry_run_option
@request_id_option
@shared_options
@click.pass_obj
def add(settings: Settings, name: str, file: BinaryIO, end: bool, dry_run: bool, request_id: str | None) -> None:
    """Add the tasks of FILE, JSON Lines or `-` for standard input, to experiment NAME.

    Adding the same file again adds nothing, so that a command that was cut off may be repeated; with another
    --request-id its tasks are other ones.
    """
    from hashlib import sha256

    from rftd.daemon.http.client.client import Client
    from rftd.ops.ids import NAMESPACE, derive

    added = 0
    receipt: commands.Receipt | None = None
    with Client(settings) as client:
        summary = client.ask(experiments.summary, name=name).value
        for rows in _batches(file):
            # Equal lines at an equal position have the same key: a repeated command gets the answers of the first.
            digest = sha256(b"\n".join(rows)).hexdigest()
            key = derive(NAMESPACE, "tasks of a file", summary.id, request_id or "", added, digest)
            body = view.AddTasks(
                tasks=[_parse_task(line, file.name, added + number) for number, line in enumerate(rows)]
            )
            if dry_run:
                # Each request is checked; without the ones before, its queue is shorter by their tasks.
                answer = client.rehearse(view.add_tasks, body, name=summary.id)
                show_consequence(answer.value, answer.plain(), settings)
                added += len(rows)
                continue
            receipt = client.send(view.add_tasks, body, name=summary.id, request_id=str(key)).value
            added += len(rows)
        if end and not dry_run:
            receipt = client.send(view.end_tasks, commands.Reason(), name=summary.id).value
    if dry_run:
        return
    position = receipt.position if receipt is not None else None
    done = {"name": summary.name, "id": summary.id, "added": added, "ended": end, "position": position}
    if not emitted(done, settings) and settings.verbosity >= 0:
        say(f"{summary.name}  {added} tasks added" + (", and no more will come" if end else ""))


@tasks.command("end")
@experiment_argument
@reason_option
@dry_run_option
@request_id_option
@shared_options
@click.pass_obj
def end(settings: Settings, name: str, reason: str, dry_run: bool, request_id: str | None) -> None:
    """Tell the end of the tasks of experiment NAME: it completes with the step that takes in the last of them."""
    from rftd.daemon.http.client.client import Client

    with Client(settings) as client:
        if dry_run:
            answer = client.rehearse(view.end_tasks, commands.Reason(reason=reason), name=name)
            show_consequence(answer.value, answer.plain(), settings)
            return
        receipt = client.send(view.end_tasks, commands.Reason(reason=reason), name=name, request_id=request_id).value
    done = {"name": name, "ended": True, "event": receipt.event, "position": receipt.position}
    if not emitted(done, settings) and settings.verbosity >= 0:
        say(f"{name}  no more tasks will come  {receipt.event}")


def _batches(file: BinaryIO) -> Iterator[list[bytes]]:
    """Yields the non-blank lines, in batches fitting into one request."""
    rows: list[bytes] = []
    size_bytes = 0
    for line in file:
        row = line.strip()
        if not row:
            continue
        if rows and (len(rows) == _TASKS or size_bytes + len(row) > _SIZE_BYTES):
            yield rows
            rows = []
            size_bytes = 0
        rows.append(row)
        size_bytes += len(row)
    if rows:
        yield rows


def _parse_task(line: bytes, file: str, number: int) -> dict[str, Any]:
    """Returns a line of `file` as a task; `number` counts from 0. Raises DataError."""
    from rftd.ops.decoding import UNREADABLE, json_decoder
    from rftd.ops.errors import DataError

    try:
        return json_decoder(dict[str, Any]).decode(line)
    except UNREADABLE as error:
        problem = f"task {number + 1} is no JSON object: {error}"
        raise DataError(
            problem, where=file, fix="write one JSON object per line; the tasks before it were added"
        ) from None
