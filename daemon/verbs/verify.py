"""`rftd verify`: holds a log against the rules, whether a daemon runs or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rftd.daemon.settings import Settings, data_folder, kafka_option, shared_options

if TYPE_CHECKING:
    from rftd.streams.verify.report import Report


@click.command("verify")
@kafka_option
@shared_options
@click.pass_obj
def command(settings: Settings, kafka: str | None) -> None:
    """Check the whole log of the daemon's folder, or on Kafka, against the rules. Exit 1 if a promise is broken."""
    import asyncio
    import sys
    from pathlib import Path

    import msgspec

    from rftd.daemon.data_folder import DataFolder
    from rftd.daemon.log_source import log_to_read
    from rftd.ops.clock import SystemClock
    from rftd.ops.ids import SystemIds
    from rftd.streams.backends.heads_file import FILE_NAME, read_heads
    from rftd.streams.verify.checker import verify

    async def check() -> Report:
        folder = DataFolder(Path(data_folder(settings)))
        clock = SystemClock()
        async with log_to_read(folder, kafka, clock=clock, ids=SystemIds(clock)) as log:
            if kafka is not None:
                return await verify(log, chained=False)
            return await verify(log, remembered=read_heads(folder.log / FILE_NAME))

    report = asyncio.run(check())
    if settings.machine_readable:
        click.echo(msgspec.json.encode(report).decode())
    else:
        click.echo(_text(report))
    sys.exit(0 if report.clean else 1)


def _text(report: Report) -> str:
    lines = []
    for each in report.experiments:
        retired = sum(each.retired.values())
        lines += [
            f"{each.name} ({each.experiment}): {each.state}",
            f"  steps {each.steps}, executed {each.executions} times in {each.generations} generations",
            f"  experiences {each.produced} = {each.planned} planned + {retired} retired + {each.waiting} waiting",
            f"  groups {each.groups}, late experiences {each.late}, fenced records {each.void}",
        ]
    for letter in report.dead_letters:
        state = "" if letter.state == "open" else f" ({letter.state})"
        lines.append(f"left out: {letter.place}{state}: {letter.reason}")
    lines += [f"broken: {finding.rule}: {finding.what}" for finding in report.findings]
    left_out = f", {len(report.dead_letters)} that are not ours" if report.dead_letters else ""
    lines.append(f"{report.records} records{left_out}, {len(report.findings)} broken promises")
    return "\n".join(lines)
