"""`rftd rebuild`: the state database from the log alone; nothing else in it is truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rftd.daemon.settings import Settings, data_folder, shared_options

if TYPE_CHECKING:
    from pathlib import Path

    from rftd.storage.rebuild import RebuildReport


@click.command("rebuild")
@click.option("--verify", is_flag=True, help="Only compare with the tables in use; exit 1 if they differ.")
@shared_options
@click.pass_context
def command(ctx: click.Context, verify: bool) -> None:
    """Fold the log of the daemon's folder into fresh tables, and put them in place of the old ones."""
    from pathlib import Path

    from rftd.daemon.data_folder import DataFolder

    settings: Settings = ctx.obj
    folder = DataFolder(Path(data_folder(settings)))
    old, new = folder.root / "state.db", folder.root / "state.rebuilt.db"
    report = _compare(folder.log, old, new) if verify else _replace(folder.log, old, new)
    if settings.machine_readable:
        from rftd.daemon.output.data import emit

        tables = {name: {"digest": digest, "equal": name not in report.different} for name, digest in _tables(report)}
        emit({"digest": report.rebuilt.total, "compared": report.live is not None, "tables": tables}, settings)
    elif settings.verbosity >= 0:
        for name in report.different:
            click.echo(f"differs: {name}")
        verdict = "nothing to compare with" if report.live is None else f"{len(report.different)} differ"
        click.echo(f"{len(report.rebuilt.tables)} tables, sha256 {report.rebuilt.total[:16]}; {verdict}")
    ctx.exit(1 if verify and report.different else 0)


def _tables(report: RebuildReport) -> list[tuple[str, str]]:
    return sorted(report.rebuilt.tables.items())


def _compare(log_folder: Path, old: Path, new: Path) -> RebuildReport:
    """Rebuilds beside the tables in use, up to where they stand, and throws the copy away."""
    import asyncio

    try:
        return asyncio.run(_rebuild(log_folder, new, old if old.exists() else None))
    finally:
        _remove(new)


def _replace(log_folder: Path, old: Path, new: Path) -> RebuildReport:
    """Rebuilds and takes the place of the tables. Raises ConflictError while a daemon uses them."""
    import asyncio

    from rftd.ops.errors import NotFoundError
    from rftd.streams.backends.lock_file import LockFile

    if not log_folder.is_dir():
        raise NotFoundError(
            f"there is no event log at {log_folder}", fix="name the folder given to `rftd serve --data`"
        )
    lock = LockFile(log_folder)
    try:
        report = asyncio.run(_rebuild(log_folder, new, None))
        _remove(old)
        new.replace(old)
        return report
    finally:
        lock.release()
        _remove(new)


async def _rebuild(log_folder: Path, new: Path, old: Path | None) -> RebuildReport:
    from rftd.ops.clock import SystemClock
    from rftd.storage.database import open_database, sqlite_url
    from rftd.storage.rebuild import rebuild
    from rftd.streams.backends.sqlite_view import SqliteView

    log = await SqliteView.open(log_folder)
    live = open_database(sqlite_url(old)) if old is not None else None
    try:
        return await rebuild(log, sqlite_url(new), clock=SystemClock(), live=live)
    finally:
        await log.close()
        if live is not None:
            await live.dispose()


def _remove(database: Path) -> None:
    for path in (database, database.with_name(database.name + "-wal"), database.with_name(database.name + "-shm")):
        path.unlink(missing_ok=True)
