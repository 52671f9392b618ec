"""`rftd rebuild`: the state database, built anew from the log alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rftd.daemon.cli.daemon_file import checked_postgres_url
from rftd.daemon.cli.log_option import log_option
from rftd.daemon.cli.output.data import emit
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, postgres_option, shared_options

if TYPE_CHECKING:
    from pathlib import Path

    from rftd.daemon.serve.data_folder import DataFolder
    from rftd.storage.projector.rebuild import RebuildReport
    from rftd.streams.log.backend import LogUrl


@click.command("rebuild")
@click.option("--verify", is_flag=True, help="Only compare with the tables in use; exit 1 if they differ.")
@log_option
@postgres_option
@shared_options
@click.pass_context
def command(ctx: click.Context, verify: bool, log_at: LogUrl | None, postgres: str | None) -> None:
    """Rebuild the tables from the log, and replace the old ones."""
    import os
    from pathlib import Path

    from rftd.daemon.http.client.address import find_folder
    from rftd.daemon.serve.data_folder import DataFolder

    settings: Settings = ctx.obj
    job = _RebuildJob(DataFolder(Path(find_folder(settings, os.environ))), log_at, postgres)
    report = job.compare() if verify else job.replace()
    if settings.machine_readable:
        tables = {
            name: {"digest": digest, "equal": name not in report.different} for name, digest in _table_counts(report)
        }
        compared = report.live is not None
        emit({"digest": report.rebuilt.total, "compared": compared, "tables": tables}, settings)
    elif settings.verbosity >= 0:
        for name in report.different:
            say(f"differs: {name}")
        count, digest = len(report.rebuilt.tables), report.rebuilt.total[:16]
        if not verify:
            verdict = f"{count} tables rebuilt, sha256 {digest}; they have replaced the old ones"
        elif report.live is None:
            verdict = f"{count} tables rebuilt, sha256 {digest}; there are none in use to compare them with"
        else:
            verdict = f"{count} tables compared, sha256 {digest}; {len(report.different)} differ"
        say(verdict)
    ctx.exit(1 if verify and report.different else 0)


def _table_counts(report: RebuildReport) -> list[tuple[str, str]]:
    """Returns names and digests of the rebuilt tables, ordered by name."""
    return sorted(report.rebuilt.tables.items())


class _RebuildJob:
    """A rebuild with the locations of log and tables."""

    def __init__(self, folder: DataFolder, log_at: LogUrl | None, postgres: str | None) -> None:
        """`log_at` is None for the embedded log; `postgres` is the URL of the tables, else a file in `folder`."""
        self._folder = folder
        self._log_at = log_at
        self._postgres = checked_postgres_url(postgres) if postgres else None
        """Checked URL of the tables; None for a file."""
        self._old = folder.root / "state.db"
        """File of the tables in use."""
        self._new = folder.root / "state.rebuilt.db"
        """File of the rebuilt tables."""

    def compare(self) -> RebuildReport:
        """Rebuilds beside the tables in use, up to their position, and deletes the copy."""
        import asyncio

        from rftd.storage.database.engine import sqlite_url

        live = self._postgres or (sqlite_url(self._old) if self._old.exists() else None)
        self._new.parent.mkdir(parents=True, exist_ok=True)
        try:
            return asyncio.run(self._rebuild(sqlite_url(self._new), live))
        finally:
            _remove_database(self._new)

    def replace(self) -> RebuildReport:
        """Rebuilds the tables and replaces the old ones. Raises ConflictError while a daemon uses them."""
        import asyncio

        from rftd.ops.errors import NotFoundError
        from rftd.storage.database.engine import sqlite_url
        from rftd.streams.sqlite.lock_file import LockFile

        # The lock held by a daemon: the file's for the embedded log, otherwise the data folder's.
        locked = self._folder.log if self._log_at is None else self._folder.root
        if not locked.is_dir():
            raise NotFoundError(
                f"there is no event log at {locked}", fix="name the folder given to `rftd serve --data`"
            )
        lock = LockFile(locked)
        try:
            if self._postgres is not None:
                return asyncio.run(self._rebuild(self._postgres, None))
            report = asyncio.run(self._rebuild(sqlite_url(self._new), None))
            # Including the -wal and -shm files: SQLite would replay those of the old database into the new one.
            _remove_database(self._old)
            self._new.replace(self._old)
            return report
        finally:
            lock.release()
            _remove_database(self._new)

    async def _rebuild(self, target: str, live_url: str | None) -> RebuildReport:
        """Rebuilds the tables at `target`; with `live_url`, up to the position of those tables, and compares both."""
        from rftd.daemon.serve.log_source import log_to_read
        from rftd.ops.clock import SystemClock
        from rftd.ops.cycles import tune_collector
        from rftd.ops.ids import SystemIds
        from rftd.storage.database.engine import open_database
        from rftd.storage.projector.rebuild import rebuild

        tune_collector()
        clock = SystemClock()
        live = open_database(live_url) if live_url is not None else None
        try:
            async with log_to_read(self._folder, self._log_at, clock=clock, ids=SystemIds(clock)) as log:
                return await rebuild(log, target, clock=clock, live=live)
        finally:
            if live is not None:
                await live.dispose()


def _remove_database(database: Path) -> None:
    """Deletes a SQLite file with its write-ahead files."""
    for path in (database, database.with_name(database.name + "-wal"), database.with_name(database.name + "-shm")):
        path.unlink(missing_ok=True)
