"""`rftd archive`, `restore`, `rm`: files of an ended experiment; `gc`: files not named by any event."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from rftd.daemon.cli.log_option import log_option
from rftd.daemon.cli.output.data import emit, emitted
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiment_argument, reason_option, request_id_option
from rftd.daemon.cli.verbs.rehearsal import dry_run_option, show_consequence
from rftd.daemon.http.views import commands, experiments
from rftd.daemon.http.views.commands import Receipt
from rftd.daemon.http.views.moment import ENDED
from rftd.daemon.http.views.route import CommandRoute
from rftd.ops.paths import absolute_path

if TYPE_CHECKING:
    from rftd.daemon.http.client.client import Client
if TYPE_CHECKING:
    from rftd.daemon.run.registry import Entry
    from rftd.daemon.run.supervisor.kept_tables import KeptTables
    from rftd.daemon.serve.data_folder import DataFolder
    from rftd.storage.files.folder_owner import LogIdentity
    from rftd.storage.files.unreferenced import Unreferenced
    from rftd.streams.log.backend import LogUrl
    from rftd.streams.log.log import EventLog


_TABLES: Final = "tables"
"""The word for files of tables in the column of experiments' names."""
B = TypeVar("B", bound=msgspec.Struct)
"""Type of a command's body."""


@click.command("archive")
@experiment_argument
@click.option(
    "--to", metavar="FILE", type=click.Path(dir_okay=False), help="New archive file. Default: one in --data/archives."
)
@dry_run_option
@request_id_option
@shared_options
@click.pass_obj
def archive(settings: Settings, name: str, to: str | None, dry_run: bool, request_id: str | None) -> None:
    """Archive experiment NAME: its log, artifacts and checkpoints go into one file; its events stay in the log."""
    body = commands.To(to=absolute_path(to) if to else "")
    _run_command(settings, commands.archive, body, name, target="archived", dry_run=dry_run, request_id=request_id)


@click.command("restore")
@experiment_argument
@click.option(
    "--from", "source", metavar="FILE", type=click.Path(dir_okay=False), help="Archive file, if it was moved."
)
@dry_run_option
@request_id_option
@shared_options
@click.pass_obj
def restore(settings: Settings, name: str, source: str | None, dry_run: bool, request_id: str | None) -> None:
    """Restore experiment NAME from its archive: every file is checked before it is put in place."""
    body = commands.From(source=absolute_path(source) if source else "")
    _run_command(settings, commands.restore, body, name, target="here", dry_run=dry_run, request_id=request_id)


@click.command("rm")
@experiment_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--archive", is_flag=True, help="Archive it first, in --data/archives.")
@reason_option
@dry_run_option
@request_id_option
@shared_options
@click.pass_context
def rm(
    ctx: click.Context, name: str, yes: bool, archive: bool, reason: str, dry_run: bool, request_id: str | None
) -> None:
    """Delete the files of experiment NAME: checkpoints, weights, artifacts, logs. `rftd ls --all` still shows it."""
    settings: Settings = ctx.obj
    if not yes and not dry_run:
        # An unanswered prompt would hang a script forever.
        if not sys.stdin.isatty():
            raise click.UsageError("no terminal to ask for confirmation: use --yes", ctx=ctx)
        click.confirm(f"Remove the files of {name}{'' if archive else ' for good'}?", abort=True, err=True)
    body = commands.Remove(reason=reason, archive=archive)
    _run_command(settings, commands.remove, body, name, target="removed", dry_run=dry_run, request_id=request_id)


def _run_command(
    settings: Settings,
    command: CommandRoute[B, Receipt],
    body: B,
    name: str,
    *,
    target: str,
    dry_run: bool,
    request_id: str | None,
) -> None:
    """Sends a command that may take long, and prints the outcome."""
    from rftd.daemon.http.client.client import Client

    with Client(settings) as client:
        if dry_run:
            answer = client.rehearse(command, body, name=name)
            show_consequence(answer.value, answer.plain(), settings)
            return
        done = _send_command(client, command, body, name, target=target, request_id=request_id)
    if not emitted(done, settings) and settings.verbosity >= 0:
        already = "already " if done["already"] else ""
        restored = done["files"] == "here"
        where = f" {'from' if restored else 'in'} {done['path']}" if done["path"] else ""
        say(f"{already}{'restored' if restored else done['files']} {done['name']}{where}")


def _send_command(
    client: Client, command: CommandRoute[B, Receipt], body: B, name: str, *, target: str, request_id: str | None
) -> dict[str, Any]:
    """Sends the command and returns the outcome; an experiment already in its target state is no error."""
    from rftd.ops.errors import ConflictError

    try:
        sent = client.send(command, body, name=name, request_id=request_id).value
    # Idempotent: an experiment already in the requested state is no error.
    except ConflictError:
        summary = client.ask(experiments.summary, name=name).value
        if summary.kept != target or summary.state not in ENDED:
            raise
        outcome = {"name": summary.name, "id": summary.id, "files": target, "path": summary.kept_path}
        return {**outcome, "already": True, "event": None, "position": None}
    summary = client.ask(experiments.summary, name=sent.id, after=sent.position).value
    done = {"name": summary.name, "id": summary.id, "files": summary.kept, "path": summary.kept_path}
    return {**done, "already": False, "event": sent.event, "position": sent.position}


@click.command("gc")
@click.argument("experiment", required=False)
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@log_option
@shared_options
@click.pass_context
def gc(ctx: click.Context, experiment: str | None, dry_run: bool, log_at: LogUrl | None) -> None:
    """Delete what a crash left in the folders of EXPERIMENT (default: all): rftd's files that no event refers to.

    Experiments that a daemon may be running are skipped; the daemon cleans up after them itself. Without EXPERIMENT the
    files of database tables go too that no experiment reads any more.
    """
    import asyncio
    import os
    from pathlib import Path

    from rftd.daemon.http.client.address import find_folder
    from rftd.daemon.run.registry import find_entry
    from rftd.daemon.run.supervisor.kept_tables import KeptTables
    from rftd.daemon.serve.data_folder import DataFolder
    from rftd.daemon.serve.log_source import read_here
    from rftd.ops.clock import SystemClock
    from rftd.storage.files.folder_owner import is_of_another
    from rftd.streams.sqlite.lock_file import LockFile

    settings: Settings = ctx.obj
    folder = DataFolder(Path(find_folder(settings, os.environ)))
    garbage: list[tuple[str, Unreferenced]] = []

    async def look(log: EventLog) -> None:
        chosen = [await find_entry(log, experiment)] if experiment else await _all_experiments(log)
        lock = _lock(LockFile, folder.log, log_at)
        try:
            identity = await _identity(folder, log_at, locked=lock is not None)
            for experiment_entry in chosen:
                if identity is not None and is_of_another(Path(experiment_entry.job_dir), identity):
                    say(
                        f"note: {experiment_entry.job_dir} belongs to another log, of which this one is a copy",
                        err=True,
                    )
                elif experiment_entry.spine.ended or lock is not None:
                    garbage.extend(
                        (experiment_entry.name, unused_file)
                        for unused_file in await _garbage(log, experiment_entry, SystemClock().now_ns())
                    )
                else:
                    say(f"note: {experiment_entry.name} is {experiment_entry.status}: its daemon sees to it", err=True)
            if lock is not None and not experiment:
                tables = KeptTables(identity)
                garbage.extend((_TABLES, unused) for unused in await _unread_tables(log, folder, tables, chosen))
            if not dry_run:
                from rftd.storage.files.unreferenced import remove

                await asyncio.to_thread(remove, [unused_file.path for _, unused_file in garbage])
        finally:
            if lock is not None:
                await asyncio.to_thread(lock.release)

    read_here(settings, log_at, look)
    _print_garbage(garbage, dry_run, settings)


def _lock(kind: Any, log: Any, log_at: LogUrl | None) -> Any:
    """Returns the log's lock, to keep daemons from starting meanwhile; None if a daemon has it or may run elsewhere."""
    from rftd.ops.errors import ConflictError

    try:
        return None if log_at is not None else kind(log)
    except ConflictError:
        return None


async def _identity(folder: DataFolder, log_at: LogUrl | None, *, locked: bool) -> LogIdentity | None:
    """Returns the identity of the log: a copied folder gets a new one once nobody else has the lock."""
    from rftd.daemon.serve.log_identity import identity_of, last_identity
    from rftd.daemon.serve.log_source import identity_at
    from rftd.ops.clock import SystemClock
    from rftd.ops.ids import SystemIds
    from rftd.streams.log.backend import backend_of

    if log_at is not None:
        return await identity_at(backend_of(log_at).checked(log_at.text))
    return identity_of(folder, SystemIds(SystemClock())) if locked else last_identity(folder)


async def _all_experiments(log: EventLog) -> list[Entry]:
    """Returns every experiment of a log, oldest first."""
    from rftd.daemon.run.registry import Registry

    registry = Registry(log)
    try:
        await registry.catch_up()
    finally:
        await registry.close()
    return sorted(registry.entries.values(), key=lambda entry: (entry.submitted_ns, entry.id))


async def _garbage(log: EventLog, entry: Entry, now_ns: int) -> list[Unreferenced]:
    """Returns the unreferenced files of one experiment. Artifacts, if any, cost reading every record."""
    import asyncio

    from rftd.storage.files.unreferenced import GRACE_S, ours, referenced_in, unreferenced
    from rftd.streams.folds.spine import Kept

    if entry.spine.kept is not Kept.HERE:
        return []  # the daemon removes these files when it starts
    files = await asyncio.to_thread(ours, entry.spec)
    if not files:
        return []
    referenced = await referenced_in(log, entry.id, artifacts=any(file.kind == "artifact" for file in files))
    # An unfinished experiment may have workers on another machine, with newest files not yet named by any event.
    grace_s = 0.0 if entry.spine.ended else GRACE_S
    return list(unreferenced(files, referenced, before_ns=now_ns - int(grace_s * 1e9)))


async def _unread_tables(
    log: EventLog, folder: DataFolder, tables: KeptTables, experiments: list[Entry]
) -> list[Unreferenced]:
    """Returns table files not read by any experiment; none if the log lost records possibly naming a file."""
    import asyncio

    from rftd.ops.clock import SystemClock
    from rftd.storage.files.survivors import LossesFile, of_log_folder
    from rftd.streams.log.lost_records import losses_of

    unused = await asyncio.to_thread(tables.unused, experiments, now_ns=SystemClock().now_ns())
    if unused and (LossesFile(folder.losses).read() or await losses_of(log, of_log_folder(folder.log))):
        say("note: the log lost records: the files of tables stay, for an experiment among them may read one", err=True)
        return []
    return unused


def _print_garbage(garbage: list[tuple[str, Unreferenced]], dry_run: bool, settings: Settings) -> None:
    """Prints the unreferenced files, removed or with `dry_run` only found, each with its size, path and reason."""
    size_bytes = sum(unused_file.size_bytes for _, unused_file in garbage)
    if settings.machine_readable:
        file_objects = [
            {"experiment": name, "path": unused_file.path, "size_bytes": unused_file.size_bytes, "why": unused_file.why}
            for name, unused_file in garbage
        ]
        emit({"items": file_objects, "size_bytes": size_bytes, "removed": not dry_run}, settings)
        return
    for _, unused_file in garbage:
        say(f"{unused_file.size_bytes:>12}  {unused_file.path}  ({unused_file.why})")
    if settings.verbosity >= 0:
        verb = "would be removed" if dry_run else "removed"
        say(f"{len(garbage)} files and folders, {size_bytes} bytes {verb}")
