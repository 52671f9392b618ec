"""`rftd experiences lengths` and `drops`: lengths of responses, and rollouts that were not trained, by reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click
from rich.console import Group, RenderableType
from rich.text import Text

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.quantity import shorts
from rftd.daemon.cli.output.table import console_of, table
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiment_argument
from rftd.daemon.http.views import drops as drop_views
from rftd.daemon.http.views import experiences
from rftd.storage.queries.drops import Drops
from rftd.storage.queries.lengths import Lengths

_BIASED_BELOW: Final = 0.05
"""The p-value below which drops count as biased, the usual 5 %."""


@click.command("lengths")
@experiment_argument
@click.option("--stage", type=click.IntRange(0), help="Only this stage: its number, from 0.")
@shared_options
@click.pass_obj
def lengths(settings: Settings, name: str, stage: int | None) -> None:
    """Compare the lengths of responses that experiment NAME generated, trained and dropped.

    Long responses take long to generate, become stale and are dropped first; the model then learns from short ones.
    A Kolmogorov-Smirnov p-value below 0.05 means that the dropped responses differ from the rest.
    """
    from rftd.daemon.http.client.client import Client

    with Client(settings) as client:
        answer = client.ask(experiences.lengths, name=name, stage=stage)
    if emitted(answer.plain(), settings):
        return
    console_of(settings).print(_lengths(answer.value))


@click.command("drops")
@experiment_argument
@click.option("--stage", type=click.IntRange(0), help="Only this stage: its number, from 0.")
@shared_options
@click.pass_obj
def drops(settings: Settings, name: str, stage: int | None) -> None:
    """Show which rollouts of experiment NAME were not trained: dropped, failed or given up, by reason.

    LENGTHS are response tokens: median, 90th percentile and maximum, to be compared with those trained.
    """
    from rftd.daemon.http.client.client import Client

    with Client(settings) as client:
        answer = client.ask(drop_views.drops, name=name, stage=stage)
    if emitted(answer.plain(), settings):
        return
    console = console_of(settings)
    headers = ("NOT TRAINED", "COUNT", "SHARE", "P50", "P90", "MAX", "EXAMPLES")
    rows = list(_drop_rows(answer.value))
    console.print(table(headers, rows, right=headers[1:6], width=console.width))
    reasons = {failure.code: failure.reason for failure in answer.value.failures}
    reasons |= {task.code: task.reason for task in answer.value.given_up}
    for code, reason in reasons.items():
        if reason:
            say(f"{code}: {reason}")


def _drop_rows(drops: Drops) -> Iterator[tuple[str, ...]]:
    """Yields a row for the trained experiences, and one for each reason against training."""
    trained = drops.trained
    yield ("(trained)", str(trained.count), "", str(trained.p50), str(trained.p90), str(trained.max), "")
    for drop in drops.reasons:
        lengths = (str(drop.tokens.p50), str(drop.tokens.p90), str(drop.tokens.max))
        yield (drop.reason, str(drop.experiences), f"{drop.share:.1%}", *lengths, " ".join(shorts(drop.examples)))
    for failure in drops.failures:
        label = f"failed {failure.code}".strip()
        examples = " ".join(shorts(failure.examples))
        yield (label, str(failure.rollouts), f"{failure.share:.1%}", "-", "-", "-", examples)
    for task in drops.given_up:
        yield (f"tasks {task.code}".strip(), str(task.tasks), "", "-", "-", "-", " ".join(shorts(task.examples)))
    if drops.undecided:
        yield ("(undecided)", str(drops.undecided), "", "", "", "", "")


def _lengths(lengths: Lengths) -> RenderableType:
    """Returns a table of the lengths, with the verdict below."""
    headers = ("RESPONSES", "COUNT", "MEAN", "P50", "P90", "P99", "MAX")
    rows = [
        (name, str(row.count), f"{row.mean:.1f}", str(row.p50), str(row.p90), str(row.p99), str(row.max))
        for name, row in (("generated", lengths.generated), ("trained", lengths.trained), ("dropped", lengths.dropped))
    ]
    reasons = ", ".join(f"{reason} {count}" for reason, count in lengths.dropped_by_reason.items())
    lines = [Text(f"dropped: {reasons}")] if reasons else []
    if lengths.undecided:
        lines.append(Text(f"not decided yet: {lengths.undecided}"))
    if lengths.never_ended:
        lines.append(Text(f"never ended (failed, timed out, given up): {lengths.never_ended}, of unknown length"))
    return Group(table(headers, rows, right=frozenset(headers[1:])), *lines, Text(_verdict(lengths)))


def _verdict(lengths: Lengths) -> str:
    """Returns the verdict on drop bias, in words."""
    if not lengths.dropped.count or not lengths.trained.count:
        return "drop bias: nothing was dropped" if lengths.trained.count else "drop bias: nothing was trained yet"
    biased = lengths.p < _BIASED_BELOW
    word = "differ in length from the rest" if biased else "are as long as the rest"
    return f"drop bias: KS {lengths.statistic:.4f}, p {lengths.p:.2g}: dropped responses {word}"
