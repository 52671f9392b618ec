"""`rftd verify`: a log, checked against the rules, with or without a running daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rftd.daemon.cli.log_option import log_option
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, postgres_option, shared_options

if TYPE_CHECKING:
    from pathlib import Path

    from rftd.ops.errors import UnreachableError
    from rftd.streams.log.backend import LogUrl
    from rftd.streams.log.log import EventLog
    from rftd.streams.verify.outside import Missing, Outside, SeenOutside
    from rftd.streams.verify.report import VerifiedExperiment, VerifyReport


@click.command("verify")
@click.option("--files", is_flag=True, help="Also check checkpoints, published weights and artifacts; reads them all.")
@click.option("--index", is_flag=True, help="Also check the index of ids and the file structure of the embedded log.")
@click.option("--scratch", metavar="DIR", help="Folder for a temporary file of about 150 bytes per experience.")
@log_option
@postgres_option
@shared_options
@click.pass_obj
def command(
    settings: Settings, log_at: LogUrl | None, postgres: str | None, files: bool, index: bool, scratch: str | None
) -> None:
    """Check the whole log against the rules, and against what the daemon's folder, the tables and the experiments'
    folders remember of it. Exit 1 if a promise is broken.

    Damaged records are listed, and the records behind them are checked too. Exit 70 if the log cannot be read at all.
    """
    import os
    import sys
    from functools import partial
    from pathlib import Path

    import msgspec

    from rftd.daemon.cli.daemon_file import checked_postgres_url
    from rftd.daemon.http.client.address import find_folder
    from rftd.daemon.run.supervisor.loss_check import find_losses
    from rftd.daemon.serve.data_folder import DataFolder
    from rftd.daemon.serve.log_source import read_here
    from rftd.ops.cycles import tune_collector
    from rftd.ops.errors import UsageError
    from rftd.storage.files.backup import files_not_restored, manifest_of
    from rftd.streams.log.backend import backend_of
    from rftd.streams.verify.checker import verify

    folder = DataFolder(Path(find_folder(settings, os.environ)))
    if index and log_at is not None:
        option = backend_of(log_at).option
        raise UsageError(
            "only the embedded log has an index of ids", field="--index", fix=f"leave out --index or {option}"
        )
    if scratch is not None and not Path(scratch).is_dir():
        raise UsageError(f"{scratch} is no folder", field="--scratch", fix="name a folder with space")

    async def check(log: EventLog) -> VerifyReport:
        where = None if scratch is None else Path(scratch)
        manifest = manifest_of(folder.root) if log_at is None else None
        copies = None if manifest is None else files_not_restored(folder.root, manifest, await log.heads())
        if copies is not None:
            say(f"this backup was not restored yet: it is verified with the files in {copies}", err=True)
        left_out = frozenset(manifest.left_out if manifest is not None else ())
        look = partial(files_of, left_out=left_out, copies=copies) if files else None
        state_url = checked_postgres_url(postgres) if postgres else None
        # Before the log is read: the survivors' memories determine its expected length.
        losses = await find_losses(log, folder, state_url, embedded=log_at is None, unheard=_unheard, copies=copies)
        chained = log_at is None or backend_of(log_at).chained
        return await verify(log, losses=losses, chained=chained, scratch=where, look=look)

    tune_collector()
    report = read_here(settings, log_at, check)
    if index:
        report = _with_index(report, folder.log)
    if settings.machine_readable:
        click.echo(msgspec.json.encode(report).decode())
    else:
        say(_report_text(report))
    sys.exit(0 if report.clean else 1)


def _unheard(error: UnreachableError) -> None:
    """Prints a warning that the heads remembered in the tables could not be read."""
    say(f"warning: the log was not compared with the tables: {error.what}", err=True)


def files_of(outside: Outside, *, left_out: frozenset[str] = frozenset(), copies: Path | None = None) -> SeenOutside:
    """Returns the missing and damaged files of an experiment, and the heads of the log remembered by intact ones.
    Blocks.

    A missing folder `left_out` by a backup is no finding. With `copies`, the files below that folder are checked.
    """
    from rftd.storage.files.outside_files import (
        below,
        lost_promises,
        memories,
        missing_artifacts,
        missing_checkpoints,
        nameless_checkpoints,
        not_looked_at,
        wrong_markers,
    )
    from rftd.streams.verify.outside import SeenOutside

    outside = outside._replace(left_out=outside.left_out | left_out)
    if copies is not None:
        outside = below(copies, outside)
    missing = [*missing_checkpoints(outside), *nameless_checkpoints(outside), *missing_artifacts(outside)]
    missing += [*lost_promises(outside), *wrong_markers(outside)]
    return SeenOutside([*missing, *_missing_weights(outside)], memories(outside), not_looked_at(outside))


def _missing_weights(outside: Outside) -> list[Missing]:
    """Returns published weights impossible to load. Weights in a machine's memory are the trainer's own affair."""
    from pathlib import Path

    from rftd.ops.errors import RftdError
    from rftd.storage.files.outside_files import is_left_out
    from rftd.streams.verify.outside import Missing
    from rftd.workers.weights.channel import as_ref
    from rftd.workers.weights.checkpoint import CheckpointChannel

    missing = []
    for event in outside.weights:
        # With the end of an experiment they are removed: they may be gone, partly gone, or still there.
        if event.method != "checkpoint" or outside.ended or is_left_out(outside, event.path):
            continue
        try:
            with CheckpointChannel(Path(event.path).parent).open(as_ref(event, outside.spec)):
                pass
        except (RftdError, OSError, ValueError) as error:
            problem = error.what if isinstance(error, RftdError) else str(error)
            name = f"weights {event.version} of generation {event.generation}"
            missing.append(Missing(event.path, f"{name}: {event.path}: {problem}"))
    return missing


def _with_index(report: VerifyReport, folder: Path) -> VerifyReport:
    """Returns the report extended by faults of the id index, the first of them in full."""
    import msgspec

    from rftd.streams.sqlite.check import wrong_ids
    from rftd.streams.verify.facts import SHOWN
    from rftd.streams.verify.report import BrokenPromise

    rule = "ids-are-indexed"
    broken_promises = [BrokenPromise(rule, None, fault) for fault in wrong_ids(folder)]
    more = {rule: len(broken_promises) - SHOWN} if len(broken_promises) > SHOWN else {}
    return msgspec.structs.replace(
        report, findings=(*report.findings, *broken_promises[:SHOWN]), left_out={**report.left_out, **more}
    )


def _books(experiment: VerifiedExperiment) -> str:
    """Returns the sum of an experiment's experiences: each is counted once."""
    books = f"{experiment.produced} = {experiment.planned} planned + {experiment.retired_unused} retired"
    books += f" + {experiment.waiting} waiting"
    if experiment.retired_after_use:
        books += f"; {experiment.retired_after_use} of those planned retired before their last use"
    return books


def _report_text(report: VerifyReport) -> str:
    """Returns the report as lines of text."""
    from rftd.ops.clock import iso

    lines = []
    for experiment in report.experiments:
        count = experiment.generations
        generations = "1 generation" if count == 1 else f"{count} generations"
        lines += [
            f"{experiment.name} ({experiment.experiment}): {experiment.state}",
            f"  steps {experiment.steps}, executed {experiment.executions} times in {generations}",
            f"  experiences {_books(experiment)}",
            f"  groups {experiment.groups}, late experiences {experiment.late}, fenced records {experiment.void}",
        ]
        if experiment.not_looked_at:
            kinds = ", ".join(f"{count} {file_kind}" for file_kind, count in experiment.not_looked_at.items())
            lines.append(f"  not looked at: {kinds}")
    for letter in report.dead_letters:
        state = "" if letter.state == "open" else f" ({letter.state})"
        lines.append(f"left out: {letter.place}{state}: {letter.reason}")
    for loss in report.accepted_losses:
        when = iso(loss.time_ns)
        lines.append(f"lost, accepted for {loss.experiment} by {loss.by} on {when}: {loss.what}")
    lines += [f"broken: {finding.rule}: {finding.what}" for finding in report.findings]
    left_out = f", {len(report.dead_letters)} that are not ours" if report.dead_letters else ""
    lines += [f"broken: {rule}: {count} more" for rule, count in report.left_out.items()]
    broken = len(report.findings) + sum(report.left_out.values())
    lines.append(f"{report.records} records{left_out}, {broken} broken promises")
    return "\n".join(lines)
