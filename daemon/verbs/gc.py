"""`rftd gc`: files in experiments' folders that no event names; without a daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rftd.daemon.log_option import log_option
from rftd.daemon.output.data import emit
from rftd.daemon.settings import Settings, data_folder, shared_options

if TYPE_CHECKING:
    from rftd.daemon.registry import Entry
    from rftd.storage.unreferenced import Unreferenced
    from rftd.streams.backends.backend import LogUrl
    from rftd.streams.log import EventLog


@click.command("gc")
@click.argument("experiment", required=False)
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@log_option
@shared_options
@click.pass_context
def command(ctx: click.Context, experiment: str | None, dry_run: bool, log_at: LogUrl | None) -> None:
    """Delete what a crash left in the folders of EXPERIMENT (default: all): rftd's files that no event refers to.

    Experiments that a daemon may be running are skipped; the daemon cleans up after them itself.
    """
    import asyncio
    from pathlib import Path

    from rftd.daemon.data_folder import DataFolder
    from rftd.daemon.log_source import log_to_read
    from rftd.daemon.registry import find_entry
    from rftd.ops.clock import SystemClock
    from rftd.ops.ids import SystemIds
    from rftd.streams.backends.lock_file import LockFile

    settings: Settings = ctx.obj
    folder = DataFolder(Path(data_folder(settings)))
    clock = SystemClock()
    found: list[tuple[str, Unreferenced]] = []

    async def look() -> None:
        async with log_to_read(folder, log_at, clock=clock, ids=SystemIds(clock)) as log:
            chosen = [await find_entry(log, experiment)] if experiment else await _every(log)
            at_rest = [entry for entry in chosen if entry.spine.ended]
            lock = None
            if len(at_rest) < len(chosen) and (lock := _lock(LockFile, folder.log, log_at)) is not None:
                at_rest = chosen
            try:
                for entry in chosen:
                    if entry in at_rest:
                        found.extend((entry.name, each) for each in await _garbage(log, entry, clock.now_ns()))
                    else:
                        click.echo(f"note: {entry.name} is {entry.status}: its daemon sees to it", err=True)
                if not dry_run:
                    from rftd.storage.unreferenced import remove

                    await asyncio.to_thread(remove, [each.path for _, each in found])
            finally:
                if lock is not None:
                    await asyncio.to_thread(lock.release)

    asyncio.run(look())
    _answer(found, dry_run, settings)


def _lock(kind: Any, log: Any, log_at: LogUrl | None) -> Any:
    """The log's lock, so that no daemon begins meanwhile; None if one has it or may be elsewhere."""
    from rftd.ops.errors import ConflictError

    try:
        return None if log_at is not None else kind(log)
    except ConflictError:
        return None


async def _every(log: EventLog) -> list[Entry]:
    from rftd.daemon.registry import Registry

    registry = Registry(log)
    try:
        await registry.catch_up()
    finally:
        await registry.close()
    return sorted(registry.entries.values(), key=lambda entry: (entry.submitted_ns, entry.id))


async def _garbage(log: EventLog, entry: Entry, now_ns: int) -> list[Unreferenced]:
    """The unreferenced files of one experiment. Artifacts are judged only if it has any: that reads every record."""
    import asyncio

    from rftd.storage.unreferenced import GRACE_S, ours, referenced_in, unreferenced
    from rftd.streams.folds.spine import Kept

    if entry.spine.kept is not Kept.HERE:
        return []  # the daemon removes them when it starts
    found = await asyncio.to_thread(ours, entry.spec)
    if not found:
        return []
    kept = await referenced_in(log, entry.id, artifacts=any(each.kind == "artifact" for each in found))
    # An experiment that has not ended may have workers on another machine, whose newest files no event names yet.
    grace_s = 0.0 if entry.spine.ended else GRACE_S
    return list(unreferenced(found, kept, before_ns=now_ns - int(grace_s * 1e9)))


def _answer(found: list[tuple[str, Unreferenced]], dry_run: bool, settings: Settings) -> None:
    size_bytes = sum(each.size_bytes for _, each in found)
    if settings.machine_readable:
        items = [
            {"experiment": name, "path": each.path, "size_bytes": each.size_bytes, "why": each.why}
            for name, each in found
        ]
        emit({"items": items, "size_bytes": size_bytes, "removed": not dry_run}, settings)
        return
    for _, each in found:
        click.echo(f"{each.size_bytes:>12}  {each.path}  ({each.why})")
    if settings.verbosity >= 0:
        verb = "would be removed" if dry_run else "removed"
        click.echo(f"{len(found)} files and folders, {size_bytes} bytes {verb}")
