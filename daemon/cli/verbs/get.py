"""`rftd get`: one page about one experiment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Group, RenderableType
from rich.text import Text

from rftd.daemon.cli.output.data import emit
from rftd.daemon.cli.output.quantity import age, number, short, size, sparkline
from rftd.daemon.cli.output.table import STATE_STYLES, Page, console_of, show, state, table
from rftd.daemon.cli.output.terminal import one_line, plain
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiment_argument
from rftd.daemon.http.views import experiments, tasks
from rftd.daemon.http.views.budgets import budget_line
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.http.views.moment import ENDED, LOST
from rftd.daemon.http.views.tasks import QueueState
from rftd.daemon.http.views.trackers import tracker_line
from rftd.daemon.http.views.wire import to_wire
from rftd.ops.clock import Clock, SystemClock, iso
from rftd.ops.errors import RftdError, UnreachableError, WaitTimeoutError
from rftd.ops.words import Level
from rftd.storage.queries.books import Books
from rftd.storage.queries.experiments import ExperimentSummary, StageRow
from rftd.storage.queries.signal import SignalRow
from rftd.storage.queries.steps import EvalRow
from rftd.storage.queries.weights import WorkerRow

if TYPE_CHECKING:
    from rftd.daemon.http.client.client import Client

SHOWN_PARTS: Final = 3
"""Maximum number of reward parts shown beside an evaluation's score; rftd steps has all parts of training rewards."""


@click.command("get")
@experiment_argument
@shared_options
@click.pass_obj
def command(settings: Settings, name: str) -> None:
    """Show one page about experiment NAME (a name, name@2, an id, or a unique prefix of an id).

    With --json it has more: `why` (see rftd why), `pace`, `queues` of tasks, and `resolved`, the experiment file with
    every default and argument, as `rftd config show` prints it.
    """
    from rftd.daemon.http.client.client import Client

    clock = SystemClock()
    with Client(settings) as client:
        answer = client.ask(experiments.one, name=name)
        queues = queues_of(client, answer.value)
        if settings.machine_readable:
            id = answer.value.experiment.summary.id
            more = {"resolved": resolved(client, id), **_with_moment(client, answer.value, queues)}
            emit({**answer.plain(), **more}, settings)
            return
    show(console_of(settings), render(answer.value, clock, queues=queues))


def queues_of(client: Client, page: ExperimentPage) -> list[QueueState]:
    """Returns the task queues of an experiment under way; none if its file names no queue."""
    summary = page.experiment.summary
    if summary.state in ENDED or not _has_queue(page.experiment.config):
        return []
    try:
        return client.ask(tasks.queues, name=summary.id).value.items
    except (UnreachableError, WaitTimeoutError):
        raise
    except RftdError:  # an unreadable log
        return []


def _has_queue(config: dict[str, Any]) -> bool:
    """True if a file, or one of its stages, receives tasks during the run."""
    node: Any = config
    for name in ("buffer", "explorer_input", "taskset", "storage_type"):
        node = node.get(name) if isinstance(node, dict) else None
    stages = config.get("stages")
    below = any(_has_queue(stage) for stage in stages if isinstance(stage, dict)) if isinstance(stages, list) else False
    return node == "queue" or below


def _with_moment(client: Client, page: ExperimentPage, queues: Sequence[QueueState]) -> dict[str, Any]:
    """Returns the parts of the page not in any table: the roles' waits, the pace, and the queues."""
    why = None
    if page.experiment.summary.state not in ENDED:
        try:
            why = client.ask(experiments.why, name=page.experiment.summary.id).plain()
        except (UnreachableError, WaitTimeoutError):
            raise
        except RftdError:  # an unreadable log
            why = None
    pace = None
    if page.moment is not None and page.moment.pace is not None:
        speed = {"step_s": page.moment.pace.step_s, "tokens_per_s": page.moment.pace.tokens_per_s}
        pace = {**speed, "left_s": page.moment.left_s}
    return {"why": why, "pace": pace, "queues": [to_wire(queue) for queue in queues]}


def resolved(client: Client, id: str) -> dict[str, Any] | None:
    """Returns the effective experiment of the specification in the log; None if the log has none any more."""
    from rftd.daemon.config.effective.experiment import effective_config
    from rftd.daemon.http.client.specification import specification

    spec = specification(client, id)
    return None if spec is None else effective_config(spec)


def render(
    page: ExperimentPage, clock: Clock, notes: Sequence[str] = (), *, queues: Sequence[QueueState] = ()
) -> RenderableType:
    """Renders the page, top down: identity, state with reasons, progress, quality, places. `notes` come first."""
    summary = page.experiment.summary
    parts: list[RenderableType] = [Text(f"{plain(summary.name)}  {plain(summary.project)}", style="bold")]
    parts += [Text(note, style="bold yellow") for note in notes]
    parts.append(Page(_lines(page, clock, queues)))
    if page.workers:
        headers = ("WORKER", "STATE", "VERSION", "PID", "HOST", "AGE", "REASON")
        rows = [_worker_row(worker, clock) for worker in page.workers]
        right = ("VERSION", "PID", "AGE")
        shown = [number for number, header in enumerate(headers) if header != "REASON" or any(row[-1] for row in rows)]
        chosen = [tuple(row[number] for number in shown) for row in rows]
        parts += [Text(""), table([headers[number] for number in shown], chosen, right=right)]
    return Group(*parts)


Line = tuple[str, Text | str]
"""Line of the page: a label with its text."""


def _lines(page: ExperimentPage, clock: Clock, queues: Sequence[QueueState]) -> Iterator[Line]:
    """Yields the labelled lines, progress first: a terminal of few lines shows only those."""
    summary = page.experiment.summary
    yield "id", summary.id
    since = f" since {iso(summary.state_ns)} ({age(summary.state_ns, clock)})"
    yield "state", Text.assemble(state(summary.state), since)
    if summary.queue_position is not None or (summary.priority and summary.state in ("running", "paused")):
        queue_place = f"number {summary.queue_position} in the queue, " if summary.queue_position is not None else ""
        yield "turn", f"{queue_place}priority {summary.priority}"
    if summary.code or summary.reason:
        yield "reason", Text(one_line(reason_of(summary)), style=STATE_STYLES.get(summary.state, ""))
    yield from _wait_line(page)
    yield from _progress_lines(page, queues)
    yield from _reward_lines(page)
    if page.signal is not None:
        yield from _signal_lines(page.signal, clock, is_explained=_loss_is_shown(page))
    yield from _eval_lines(page)
    yield from _decision_lines(page)
    for position, budget in enumerate(page.budgets):
        yield "budgets" if position == 0 else "", budget_line(budget, clock)
    if summary.staleness_p95 is not None:
        versions = "version" if summary.staleness_p95 == 1 else "versions"
        yield "staleness", f"p95 {summary.staleness_p95} {versions} in the last batch"
    yield "experiences", _books_words(page.experiment.books)
    yield from _file_lines(page, clock)


def _wait_line(page: ExperimentPage) -> Iterator[Line]:
    """Yields the worst wait, as a sentence; without any, the present work."""
    now = page.moment
    if page.waiting:
        yield "waiting", Text(one_line(page.waiting), style="yellow")
    elif now is not None and now.why is not None:
        yield "why", Text(one_line(now.why), style="bold red" if now.why_level is Level.STUCK else "yellow")
    elif now is not None and now.sentence != now.progress and page.experiment.summary.state == "running":
        yield "now", one_line(now.sentence)


def _loss_is_shown(page: ExperimentPage) -> bool:
    """True if a line above already gives the reason for the lost signal, and the fix."""
    shown = page.moment is not None and page.moment.why_role == "signal" and not page.waiting
    return shown or page.experiment.summary.code == LOST


def _progress_lines(page: ExperimentPage, queues: Sequence[QueueState]) -> Iterator[Line]:
    """Yields the lines of stages, steps, pace, work under way, pause and task queues."""
    detail = page.experiment
    summary = detail.summary
    for position, stage in enumerate(detail.stages):
        yield "stages" if position == 0 else "", _stage_words(stage, summary)
    if summary.parent is not None:
        parent = f"{detail.parent_name or 'an experiment that is not here'} ({short(summary.parent)})"
        yield "forked", f"at step {summary.forked_step} of {parent}"
    yield (
        "steps",
        f"{summary.step} of {summary.total_steps}{_share_words(summary)}{_generation_words(summary.generation)}",
    )
    if page.moment is not None and page.moment.pace_words is not None:
        yield "pace", page.moment.pace_words
    if page.moment is not None and page.moment.work_words is not None:
        yield "under way", page.moment.work_words
    if page.moment is not None and page.moment.pause is not None:
        yield "pause", page.moment.pause.words
    for queue in queues:
        yield (
            "tasks",
            f"{queue.added} added, {queue.tried} tried; {'no more will come' if queue.ended else 'more may come'}",
        )


def _share_words(summary: ExperimentSummary) -> str:
    """Returns the share of trained steps; empty without a planned number."""
    return f" ({summary.step / summary.total_steps:.0%})" if summary.total_steps else ""


def _reward_lines(page: ExperimentPage) -> Iterator[Line]:
    """Yields the lines of the reward curve and of the newest mean."""
    rewards = [point.reward_mean for point in page.reward_curve]
    if not rewards:
        return
    curve = f"{sparkline(rewards)}  {rewards[0]:.3f} -> {rewards[-1]:.3f}"
    if inherited := [point.step for point in page.reward_curve if point.inherited]:
        curve += f" (inherited up to step {inherited[-1]})"
    yield "reward", curve
    yield "", f"{number(page.experiment.summary.reward_mean)} over the last 256 rollouts"


def _file_lines(page: ExperimentPage, clock: Clock) -> Iterator[Line]:
    """Yields the lines of weights, checkpoints, memory, trackers, folders and warnings."""
    detail = page.experiment
    summary = detail.summary
    if announced := [weight for weight in page.weights if weight.counts]:
        newest = announced[-1]
        published = f"version {newest.version} published {age(newest.published_ns, clock)} ago"
        workers = "1 worker" if newest.holders == 1 else f"{newest.holders} workers"
        used = f", used by {workers}" if summary.state not in ENDED else ""
        yield "weights", f"{published}, {size(newest.size_bytes)}{used}"
    if page.overdue:
        yield "overdue", Text(one_line(_overdue_line(page, clock)), style="yellow")
    for position, checkpoint in enumerate(reversed(page.checkpoints[-2:])):
        kind = summary.kept if summary.kept != "here" else "final" if checkpoint.final else "kept"
        relative_path = checkpoint.path.removeprefix(f"{detail.job_dir}/")
        text = f"step {checkpoint.step} ({kind}, {size(checkpoint.size_bytes)})  {relative_path}"
        yield "checkpoints" if position == 0 else "", text
    for position, line in enumerate(page.moment.memory if page.moment is not None else ()):
        yield "memory" if position == 0 else "", one_line(line)
    for position, tracker in enumerate(page.trackers):
        text = one_line(tracker_line(tracker, summary.step))
        yield "trackers" if position == 0 else "", Text(text, style="yellow" if tracker.error else "")
    yield "folder", detail.job_dir
    if summary.kept != "here":
        where = f" in {summary.kept_path}" if summary.kept_path else ""
        yield "files", Text(plain(f"{summary.kept}{where}"), style="yellow")
    for warning in detail.warnings:
        yield "warning", Text(one_line(warning), style="yellow")


def reason_of(of: ExperimentSummary | WorkerRow) -> str:
    """Returns code and reason of an experiment's or worker's end; empty without any."""
    return ": ".join(text for text in (of.code, of.reason) if text)


def _stage_words(stage: StageRow, summary: ExperimentSummary) -> str:
    """Returns a stage with its trained steps and progress."""
    begun, waits = ("not finished", "never begun") if summary.state in ENDED else ("under way", "waits")
    progress = "done" if stage.completed_ns else begun if stage.started_ns else waits
    if stage.shared_steps:
        progress = f"{stage.shared_steps} of them shared" if stage.shared_steps < stage.total_steps else "shared"
    done = 0 if stage.first_version is None else max(0, min(stage.total_steps, summary.step - stage.first_version))
    return f"{stage.name} ({stage.algorithm}) {done}/{stage.total_steps} steps, {progress}"


def _generation_words(generation: int | None) -> str:
    """Returns how often the trainer was resumed; empty if never."""
    times = "once" if generation == 1 else f"{generation} times"
    return f"   resumed {times}" if generation else ""


def _books_words(books: Books) -> str:
    """Returns the sum of the experiences: produced against waiting, cooling, planned and retired, by reason."""
    retired = sum(books.retired.values())
    used = {reason: f", {count} of them used before" for reason, count in books.retired_used.items()}
    reasons = "; ".join(f"{reason} {count}{used.get(reason, '')}" for reason, count in sorted(books.retired.items()))
    text = (
        f"{books.produced} produced = {books.waiting} waiting + {books.cooling} cooling + {books.planned} planned"
        f" + {retired} retired" + (f" ({reasons})" if reasons else "")
    )
    extra = [
        f"{count} {description}"
        for count, description in (
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


def _overdue_line(page: ExperimentPage, clock: Clock) -> str:
    """Returns the last window whose weights came too late, in words."""
    last = page.overdue[-1]
    stages = page.experiment.stages
    stage = stages[last.stage].name if last.stage < len(stages) else str(last.stage)
    count_note = f"{page.overdue_windows} windows; the last: " if page.overdue_windows > 1 else ""
    then = f"went on with version {last.version}" if last.version >= 0 else "went on waiting"
    return f"{count_note}window {last.window} of {stage} {then} {age(last.overdue_ns, clock)} ago: {last.reason}"


def _eval_lines(page: ExperimentPage) -> Iterator[Line]:
    """Yields a line per held-out taskset with its score curve, and one for the evaluation under way."""
    sets: dict[str, list[EvalRow]] = {}
    for evaluation in page.evals:
        if evaluation.score is not None:
            sets.setdefault(evaluation.taskset, []).append(evaluation)
    label = "evals"
    for name, rows in sets.items():
        scores = [row.score for row in rows if row.score is not None]
        scores_text = f"{scores[0]:.3f} -> {scores[-1]:.3f}" if len(scores) > 1 else f"{scores[0]:.3f}"
        text = (
            f"{name}  {sparkline(scores, width=24)}  {scores_text}{_interval_words(rows[-1])}{_parts_words(rows[-1])}"
        )
        yield label, Text.assemble(plain(text), (_worthless_words(rows[-1]), "yellow"))
        label = ""
    if page.moment is not None and page.moment.evaluation is not None:
        yield label, f"under way: {page.moment.evaluation}"


def _interval_words(row: EvalRow) -> str:
    """Returns the score's 95 % interval; empty if the recording release did not compute one."""
    low, high = row.metrics.get("score/low"), row.metrics.get("score/high")
    return f" [{low:.3f} to {high:.3f}]" if low is not None and high is not None else ""


def _decision_lines(page: ExperimentPage) -> Iterator[Line]:
    """Yields the best checkpoint of each stage, and the evaluation ending the stage."""
    several = len(page.experiment.stages) > 1
    for stage in page.experiment.stages:
        of_stage = f" of {stage.name}" if several else ""
        if stage.best_version is not None and stage.best_value is not None:
            base = f", {stage.best_base:.3f} before training" if stage.best_base is not None else ""
            paths = [row.path for row in page.checkpoints if row.step == stage.best_version]
            relative_path = f"  {paths[-1].removeprefix(f'{page.experiment.job_dir}/')}" if paths else ""
            figure = str(stage.best_figure).removeprefix("eval/")
            yield (
                "best",
                plain(f"step {stage.best_version}{of_stage}: {figure} {stage.best_value:.3f}{base}{relative_path}"),
            )
        if stage.stopped_by is not None:
            yield "stopped", one_line(f"{stage.name} early: {stage.stopped_reason}")


def _parts_words(row: EvalRow) -> str:
    """Returns the means of an evaluation's first reward parts; empty without parts."""
    from rftd.streams.figures.reward_parts import part_of

    means = [(part_of(figure), figure_mean) for figure, figure_mean in row.metrics.items()]
    shown = [
        f"{part_name} {figure_mean:.3f}"
        for part_name, figure_mean in means
        if part_name is not None and figure_mean is not None
    ]
    more = f" and {len(shown) - SHOWN_PARTS} more" if len(shown) > SHOWN_PARTS else ""
    return f" ({', '.join(shown[:SHOWN_PARTS])}{more})" if shown else ""


def _worthless_words(row: EvalRow) -> str:
    """Returns the number of an evaluation's rows scoring 0 regardless of the model; empty if there are none."""
    labels = (("prompts_cut_rows", "prompts were cut"), ("failed_rows", "rows have no answer"))
    # The metrics count answers, and a row may have several.
    answers = round(row.rows * (row.metrics.get("tries") or 1.0))
    parts = [f"{count:.0f} of {answers} {label}" for name, label in labels if (count := row.metrics.get(name))]
    return f"  {', '.join(parts)}" if parts else ""


def _signal_lines(signal: SignalRow, clock: Clock, *, is_explained: bool) -> Iterator[Line]:
    """Yields the lost signal or solved task, and the newest step's figures; the reason unless `is_explained`."""
    label, _, words = signal_words(signal).partition(" ")
    if words:
        if label == "signal" and is_explained:
            words = f"lost at step {signal.since_step}: {signal.cause}"
        ago = f" ({age(signal.since_ns, clock)})" if signal.since_ns is not None else ""
        yield label, Text(one_line(f"{words}{ago}"), style="yellow" if label == "signal" else "green")
    shares = (
        (signal.equal_groups, "of groups with equal rewards"),
        (signal.prompts_cut, "of prompts cut"),
        (signal.answers_cut, "of answers cut"),
        (signal.answers_empty, "of answers empty"),
    )
    figures = [f"{share:.0%} {description}" for share, description in shares if share is not None]
    if signal.step is not None:
        figures.append(f"{signal.tokens:,} tokens trained")
        figures += [f"gradient {signal.gradient_norm:.3g}"] if signal.gradient_norm is not None else []
        yield "" if label == "signal" else "signal", f"step {signal.step}: {', '.join(figures)}"


def signal_words(signal: SignalRow | None) -> str:
    """Returns `signal lost at step ...` or `solved since step ...`, with the reason; empty during normal training."""
    if signal is None or signal.cause is None:
        return ""
    from rftd.streams.folds.signal import SOLVED  # late: few pages need it, and every `rftd get` would pay for it

    if signal.cause == SOLVED:
        return f"solved since step {signal.since_step}: {(signal.reason or '').replace('; fix: ', '; ')}"
    return f"signal lost at step {signal.since_step}: {signal.cause}: {signal.reason}"


def _worker_row(worker: WorkerRow, clock: Clock) -> tuple[str | Text, ...]:
    """Returns a worker as a row of the table."""
    name = worker.role if worker.slot < 0 else f"{worker.role} {worker.slot}"
    version = "-" if worker.version is None else str(worker.version)
    reason = one_line(reason_of(worker))
    return name, state(worker.state), version, str(worker.pid), worker.host, age(worker.started_ns, clock), reason
