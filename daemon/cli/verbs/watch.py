"""`rftd watch`: the page of `rftd get`, live, until the experiment ends; Ctrl-C stops nothing."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click
import msgspec

from rftd.daemon.cli.output.data import emit_line
from rftd.daemon.cli.output.quantity import lasting, number, sparkline
from rftd.daemon.cli.output.table import console_of
from rftd.daemon.cli.output.terminal import one_line, say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiment_argument
from rftd.daemon.cli.verbs.get import queues_of, reason_of, render, signal_words
from rftd.daemon.http.views import moment as moments
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.http.views.moment import ENDED
from rftd.ops.clock import SystemClock, iso
from rftd.ops.errors import RftdError, UnreachableError, UsageError, WaitTimeoutError

if TYPE_CHECKING:
    from rftd.daemon.http.client.client import Client
    from rftd.daemon.http.client.page_feed import PageFeed
    from rftd.daemon.http.views.tasks import QueueState

REDRAW_S: Final = 1.0
"""Seconds between redraws without news, for the ages and the remaining time."""

_QUERY_TIMEOUT_S: Final = 2.0
"""Longest wait in seconds for figures beside the page: a hanging daemon must not stop the clock."""


@click.command("watch")
@experiment_argument
@click.option("--keys", "by_keys", is_flag=True, help="Browse curves, groups and answers by keys; ? lists them.")
@shared_options
@click.pass_context
def command(ctx: click.Context, name: str, by_keys: bool) -> None:
    """Follow experiment NAME until it ends; exit 1 if it does not complete. Ctrl-C detaches.

    Redraws the page of `rftd get` every second. If the daemon stops answering, waits for it as long as --timeout says.
    """
    from rftd.daemon.http.client.client import Client

    with Client(ctx.obj) as client:
        if by_keys:
            _browse(client, name, ctx.obj)
            return
        ctx.exit(follow_to_end(client, name, ctx.obj))


def _browse(client: Client, name: str, settings: Settings) -> None:
    """Opens the run by keys. Raises UsageError without a terminal."""
    from rftd.daemon.cli.verbs.keys_view import browse

    if settings.machine_readable or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("needs a terminal", field="--keys", fix="leave it out")
    browse(client, name)


def follow_to_end(
    client: Client, name: str, settings: Settings, *, after: str | None = None, handle: str | None = None
) -> int:
    """Shows the experiment until its end, and returns the exit status for the outcome."""
    from rftd.daemon.http.client.page_feed import PageFeed

    last: ExperimentPage | None = None
    try:
        with PageFeed(client, name, after=after, patience_s=settings.answer_timeout_s) as feed:
            for page in _displayed_pages(client, feed, settings):
                last = page
    except KeyboardInterrupt:
        say(f"\ndetached; nothing was stopped. Again: rftd watch {shlex.quote(handle or name)}", err=True)
        return 130
    assert last is not None
    summary = last.experiment.summary
    if not settings.machine_readable and summary.state != "completed":
        reason = one_line(reason_of(summary))
        say(f"{summary.name} {summary.state}" + (f"  {reason}" if reason else ""), err=True)
    return 0 if summary.state == "completed" else 1


def _displayed_pages(client: Client, feed: PageFeed, settings: Settings) -> Iterator[ExperimentPage]:
    """Yields each page once displayed: as JSON lines, as a live page, or as a line without a terminal."""
    console = console_of(settings)
    if console.is_terminal and not settings.machine_readable:
        yield from _live_pages(client, feed, settings)
        return
    from rftd.daemon.http.client.page_feed import Away

    away = False
    shown = ""
    for news in feed.each(REDRAW_S):
        if isinstance(news, Away):
            if not away and settings.verbosity >= 0:
                say(f"{_away_words(client)}; waiting {lasting(settings.answer_timeout_s)} for it", err=True)
            away = True
        elif news is not None:
            away = False
            if settings.machine_readable:
                emit_line(news.plain())
            elif (line := brief(news.value)) != shown:
                # Most news of a run, such as each finished rollout, is on the page and not in the line.
                click.echo(f"{iso(SystemClock().now_ns())}  {line}")
                shown = line
            yield news.value


def _live_pages(client: Client, feed: PageFeed, settings: Settings) -> Iterator[ExperimentPage]:
    """Yields each new page once drawn; redraws the page each second without news, with the present moment."""
    from rich.live import Live

    from rftd.daemon.http.client.client import Client
    from rftd.daemon.http.client.page_feed import Away

    clock = SystemClock()
    page: ExperimentPage | None = None
    queues: list[QueueState] = []
    cut_off = False
    away_s: float | None = None
    # Refreshed only here: rich's own thread would draw the same page four times a second.
    with (
        Client(replace(settings, timeout_s=min(settings.answer_timeout_s, _QUERY_TIMEOUT_S))) as query_client,
        Live(console=console_of(settings), auto_refresh=False) as live,
    ):
        for news in feed.each(REDRAW_S):
            if isinstance(news, Away):
                cut_off = True
            elif news is not None:
                cut_off = False
                page = news.value
            if page is None:
                continue
            refreshed = None if cut_off else _refreshed(query_client, page)
            if refreshed is not None:
                away_s = None
                page, queues = refreshed
            else:
                away_s = time.monotonic() if away_s is None else away_s
                page = msgspec.structs.replace(page, moment=None)  # the present progress is unknown
            live.update(render(page, clock, _absence_notes(client, away_s, settings), queues=queues), refresh=True)
            if news is not None and not isinstance(news, Away):
                yield news.value


def _refreshed(client: Client, page: ExperimentPage) -> tuple[ExperimentPage, list[QueueState]] | None:
    """Returns the page with the present moment, and its queues; None if the daemon does not answer."""
    summary = page.experiment.summary
    if summary.state in ENDED:
        return page, []
    try:
        now = client.ask(moments.moment, name=summary.id).value
        return msgspec.structs.replace(page, moment=now), queues_of(client, page)
    except (UnreachableError, WaitTimeoutError):
        return None
    except RftdError:  # an unreadable log
        return page, []


def _absence_notes(client: Client, away_s: float | None, settings: Settings) -> tuple[str, ...]:
    """Returns the note about a daemon not answering since `away_s`; empty while one answers."""
    if away_s is None:
        return ()
    old = lasting(time.monotonic() - away_s)
    patience = lasting(settings.answer_timeout_s)
    return (
        f"{_away_words(client)}: this page is {old} old. Waiting up to {patience} for one; start it with `rftd serve`",
    )


def _away_words(client: Client) -> str:
    """Returns the words for a daemon not answering."""
    return f"no daemon answers at {client.url}"


def brief(page: ExperimentPage) -> str:
    """Returns the page as a line of text without its time, for output without a terminal."""
    summary = page.experiment.summary
    curve = sparkline([point.reward_mean for point in page.reward_curve], width=16)
    return (
        f"{summary.name}  {summary.state:<9}  {summary.stage or '-'}"
        f"  step {summary.step}/{summary.total_steps}  reward {number(summary.reward_mean)}  {curve}".rstrip()
    ) + (f"  {signal_text}" if (signal_text := signal_words(page.signal)) else "")
