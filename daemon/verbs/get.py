"""`rftd get`: one page about one experiment. `rftd watch`: that page, live, until it ends; Ctrl-C stops nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Group, RenderableType
from rich.text import Text

from rftd.daemon.output.data import emit, emit_line
from rftd.daemon.output.quantity import age, number, size, sparkline
from rftd.daemon.output.table import STATE_STYLES, console_of, state, table
from rftd.daemon.settings import Settings, shared_options
from rftd.daemon.verbs.arguments import experiment_argument
from rftd.daemon.views import experiments
from rftd.daemon.views.experiments import ExperimentPage
from rftd.ops.clock import Clock, SystemClock, iso
from rftd.ops.decoding import converted
from rftd.storage.queries.books import Books
from rftd.storage.queries.experiments import ExperimentSummary, StageRow
from rftd.storage.queries.signal import SignalRow
from rftd.storage.queries.steps import EvalRow
from rftd.storage.queries.weights import WorkerRow

if TYPE_CHECKING:
    from rftd.daemon.client.client import Answer, Client

_LABEL: Final = 14
_SUBMISSIONS: Final = 100
"""Submissions of one experiment that are looked at: one, or its two halves, each maybe more than once."""


@click.command("get")
@experiment_argument
@shared_options
@click.pass_obj
def command(settings: Settings, name: str) -> None:
    """Show one page about experiment NAME (a name, name@2, an id, or a unique prefix of an id).

    As data it has `resolved` too: the experiment file with every default and argument, as `rftd config show` has it.
    """
    from rftd.daemon.client.client import Client

    with Client(settings) as client:
        answer = client.ask(experiments.one, name=name)
        if settings.machine_readable:
            emit({**answer.plain(), "resolved": resolved(client, answer.value.experiment.summary.id)}, settings)
            return
    console_of(settings).print(render(answer.value, SystemClock()))


def resolved(client: Client, id: str) -> dict[str, Any] | None:
    """The effective experiment of the specification that the log keeps; None if the log has none any more."""
    from rftd.daemon.config.effective.experiment import effective_config
    from rftd.daemon.views.events import events
    from rftd.streams.spec import ExperimentSpec
    from rftd.streams.split_submission import joined

    page = client.ask(events, name=id, type=["experiment.submitted"], limit=_SUBMISSIONS, full=True).value
    if not page.items:
        return None
    spec, *more = (converted(each.payload["spec"], ExperimentSpec) for each in page.items)
    for half in more:
        both = joined(spec, half)
        spec = both if isinstance(both, ExperimentSpec) else spec
    return effective_config(spec)


def render(page: ExperimentPage, clock: Clock) -> RenderableType:
    """The page, top down: what it is, why, how far, how good, where everything is."""
    return Group(*_lines(page, clock))


def _lines(page: ExperimentPage, clock: Clock) -> Iterator[RenderableType]:
    detail = page.experiment
    summary = page.experiment.summary
    yield Text.assemble((summary.name, "bold"), f"  {summary.project}  {summary.id}")
    yield _line(
        "state", Text.assemble(state(summary.state), f" since {iso(summary.state_ns)} ({age(summary.state_ns, clock)})")
    )
    if summary.queue_position is not None or (summary.priority and summary.state in ("running", "paused")):
        place = f"number {summary.queue_position} in the queue, " if summary.queue_position is not None else ""
        yield _line("turn", Text(f"{place}priority {summary.priority}"))
    if summary.code or summary.reason:
        reason = _reason(summary)
        yield _line("reason", Text(reason, style=STATE_STYLES.get(summary.state, "")))
    if summary.kept != "here":
        where = f" in {summary.kept_path}" if summary.kept_path else ""
        yield _line("files", Text(f"{summary.kept}{where}", style="yellow"))
    if page.waiting:
        yield _line("waiting", Text(page.waiting, style="yellow"))
    for position, stage in enumerate(detail.stages):
        yield _line("stages" if position == 0 else "", Text(_stage(stage, summary.step)))
    if summary.parent is not None:
        parent = f"{detail.parent_name or 'an experiment that is not here'} ({summary.parent})"
        yield _line("forked", Text(f"at step {summary.forked_step} of {parent}"))
    yield _line("steps", Text(f"{summary.step} of {summary.total_steps}" + _generation(summary.generation)))
    rewards = [point.reward_mean for point in page.reward_curve]
    if rewards:
        curve = f"{sparkline(rewards)}  {rewards[0]:.3f} -> {rewards[-1]:.3f}"
        if inherited := [point.step for point in page.reward_curve if point.inherited]:
            curve += f" (inherited up to step {inherited[-1]})"
        yield _line("reward", Text(f"{curve}   last 256 rollouts {number(summary.reward_mean)}"))
    if page.signal is not None:
        yield from _signal(page.signal, clock)
    if summary.staleness_p95 is not None:
        yield _line("staleness", Text(f"p95 {summary.staleness_p95} versions in the last batch"))
    yield _line("experiences", Text(_books(detail.books)))
    if page.evals:
        yield from _evals(page)
    if announced := [weight for weight in page.weights if weight.counts]:
        newest = announced[-1]
        published = f"version {newest.version} published {age(newest.published_ns, clock)} ago"
        yield _line("weights", Text(f"{published}, {size(newest.size_bytes)}, used by {newest.holders} workers"))
    if page.overdue:
        yield _line("overdue", Text(_overdue(page, clock), style="yellow"))
    for position, checkpoint in enumerate(reversed(page.checkpoints[-2:])):
        kind = summary.kept if summary.kept != "here" else "final" if checkpoint.final else "kept"
        text = f"step {checkpoint.step} ({kind}, {size(checkpoint.size_bytes)})  {checkpoint.path}"
        yield _line("checkpoints" if position == 0 else "", Text(text))
    yield _line("folder", Text(detail.job_dir))
    for warning in detail.warnings:
        yield _line("warning", Text(warning, style="yellow"))
    if page.workers:
        yield Text("")
        headers = ("WORKER", "STATE", "VERSION", "PID", "HOST", "AGE", "REASON")
        rows = [_worker(worker, clock) for worker in page.workers]
        yield table(headers, rows, right=frozenset({"VERSION", "PID"}))


def _line(label: str, text: Text) -> Text:
    return Text.assemble((f"{label:<{_LABEL}}", "dim"), text)


def _reason(of: ExperimentSummary | WorkerRow) -> str:
    return ": ".join(part for part in (of.code, of.reason) if part)


def _stage(stage: StageRow, step: int) -> str:
    progress = "done" if stage.completed_ns else "under way" if stage.started_ns else "waits"
    if stage.shared_steps:
        progress = f"{stage.shared_steps} of them shared" if stage.shared_steps < stage.total_steps else "shared"
    done = 0 if stage.first_version is None else max(0, min(stage.total_steps, step - stage.first_version))
    return f"{stage.name} ({stage.algorithm}) {done}/{stage.total_steps} steps, {progress}"


def _generation(generation: int | None) -> str:
    return f"   resumed {generation} times" if generation else ""


def _books(books: Books) -> str:
    retired = sum(books.retired.values())
    used = {reason: f", {count} of them used before" for reason, count in books.retired_used.items()}
    reasons = "; ".join(f"{reason} {count}{used.get(reason, '')}" for reason, count in sorted(books.retired.items()))
    text = (
        f"{books.produced} produced = {books.waiting} waiting + {books.cooling} cooling + {books.planned} planned"
        f" + {retired} retired" + (f" ({reasons})" if reasons else "")
    )
    extra = [
        f"{count} {what}"
        for count, what in (
            (books.open, "in open groups"),
            (books.late, "late"),
            (books.failed_rollouts, "rollouts failed"),
        )
        if count
    ]
    extra += [f"{count} tasks given up ({code})" for code, count in sorted(books.given_up.items())]
    if books.balance:
        extra.append(f"BOOKS OFF BY {books.balance}")
    return text + (f"; {', '.join(extra)}" if extra else "")


def _overdue(page: ExperimentPage, clock: Clock) -> str:
    last = page.overdue[-1]
    stages = page.experiment.stages
    stage = stages[last.stage].name if last.stage < len(stages) else str(last.stage)
    others = f"{page.overdue_windows} windows; the last: " if page.overdue_windows > 1 else ""
    then = f"went on with version {last.version}" if last.version >= 0 else "went on waiting"
    return f"{others}window {last.window} of {stage} {then} {age(last.overdue_ns, clock)} ago: {last.reason}"


def _evals(page: ExperimentPage) -> Iterator[Text]:
    sets: dict[str, list[EvalRow]] = {}
    for each in page.evals:
        if each.score is not None:
            sets.setdefault(each.taskset, []).append(each)
    for position, (name, rows) in enumerate(sets.items()):
        scores = [row.score for row in rows if row.score is not None]
        text = f"{name}  {sparkline(scores, width=24)}  {scores[0]:.3f} -> {scores[-1]:.3f}"
        yield _line("evals" if position == 0 else "", Text.assemble(text, (_worthless(rows[-1]), "yellow")))


def _worthless(row: EvalRow) -> str:
    """The rows of an evaluation that score 0 whatever the model is worth; empty if there are none."""
    told = (("prompts_cut_rows", "prompts were cut"), ("failed_rows", "rows have no answer"))
    parts = [f"{count:.0f} of {row.rows} {what}" for name, what in told if (count := row.metrics.get(name))]
    return f"  {', '.join(parts)}" if parts else ""


def _signal(signal: SignalRow, clock: Clock) -> Iterator[Text]:
    """The loss of the signal, if it is lost, and the figures of the newest step."""
    if lost := _lost(signal):
        ago = f" ({age(signal.since_ns, clock)})" if signal.since_ns is not None else ""
        yield _line("signal", Text(f"{lost}{ago}", style="yellow"))
    shares = (
        (signal.equal_groups, "of groups with equal rewards"),
        (signal.prompts_cut, "of prompts cut"),
        (signal.answers_cut, "of answers cut"),
        (signal.answers_empty, "of answers empty"),
    )
    known = [f"{share:.0%} {what}" for share, what in shares if share is not None]
    if signal.step is not None:
        known.append(f"{signal.tokens:,} tokens trained")
        known += [f"gradient {signal.gradient_norm:.3g}"] if signal.gradient_norm is not None else []
        yield _line("" if lost else "signal", Text(f"step {signal.step}: {', '.join(known)}"))


def _lost(signal: SignalRow | None) -> str:
    """The cause in words; empty while something is learnt."""
    if signal is None or signal.cause is None:
        return ""
    return f"lost at step {signal.since_step}: {signal.cause}: {signal.reason}"


def _worker(worker: WorkerRow, clock: Clock) -> tuple[str | Text, ...]:
    name = worker.role if worker.slot < 0 else f"{worker.role} {worker.slot}"
    version = "-" if worker.version is None else str(worker.version)
    reason = _reason(worker)
    return name, state(worker.state), version, str(worker.pid), worker.host, age(worker.started_ns, clock), reason


@click.command("watch")
@experiment_argument
@shared_options
@click.pass_context
def watch(ctx: click.Context, name: str) -> None:
    """Follow experiment NAME until it ends; exit 1 if it does not complete. Ctrl-C detaches."""
    from rftd.daemon.client.client import Client

    with Client(ctx.obj) as client:
        ctx.exit(follow_to_end(client, name, ctx.obj))


def follow_to_end(
    client: Client, name: str, settings: Settings, *, after: str | None = None, handle: str | None = None
) -> int:
    """Shows the experiment until it ended; the exit status that its end means."""
    from rftd.daemon.client.client import follow

    last: ExperimentPage | None = None
    try:
        pages = follow(client, name, after=after, patience_s=settings.timeout_s)
        for page in _shown(pages, settings):
            last = page
    except KeyboardInterrupt:
        click.echo(f"\ndetached; nothing was stopped. Again: rftd watch {handle or name}", err=True)
        return 130
    assert last is not None
    summary = last.experiment.summary
    if not settings.machine_readable and summary.state != "completed":
        reason = _reason(summary)
        click.echo(f"{summary.name} {summary.state}" + (f"  {reason}" if reason else ""), err=True)
    return 0 if summary.state == "completed" else 1


def _shown(pages: Iterator[Answer[ExperimentPage]], settings: Settings) -> Iterator[ExperimentPage]:
    """Each page once it is on the screen: as JSON lines, as a live page, or as a line where no terminal is."""
    if settings.machine_readable:
        for answer in pages:
            emit_line(answer.plain())
            yield answer.value
        return
    from rich.live import Live

    console = console_of(settings)
    clock = SystemClock()
    if not console.is_terminal:
        for answer in pages:
            click.echo(brief(answer.value))
            yield answer.value
        return
    # Refreshed by pages only: rich's own thread would draw the same page four times a second.
    with Live(console=console, auto_refresh=False) as live:
        for answer in pages:
            live.update(render(answer.value, clock), refresh=True)
            yield answer.value


def brief(page: ExperimentPage) -> str:
    """The page in one line, for where no terminal is."""
    summary = page.experiment.summary
    curve = sparkline([point.reward_mean for point in page.reward_curve], width=16)
    return (
        f"{iso(summary.state_ns)}  {summary.name}  {summary.state:<9}  {summary.stage or '-'}"
        f"  step {summary.step}/{summary.total_steps}  reward {number(summary.reward_mean)}  {curve}".rstrip()
    ) + (f"  signal {lost}" if (lost := _lost(page.signal)) else "")
