"""`rftd evals`: an experiment's evaluations, their answers, and the answers to a held-out row through versions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.quantity import number
from rftd.daemon.cli.output.table import LABEL, console_of, labelled, table
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiments_argument
from rftd.daemon.http.views import evaluations, history
from rftd.daemon.http.views.evaluations import AnswerView, EvaluationPage, HeldOutRow, VersionComparison, Which
from rftd.daemon.http.views.wire import to_wire
from rftd.ops.errors import NotFoundError, UsageError
from rftd.storage.queries.steps import EvalRow

if TYPE_CHECKING:
    from rftd.daemon.http.client.client import Client
    from rftd.daemon.http.client.judging import Judgement

_NOISE_ABOVE: Final = 0.05
"""The p-value from which a difference counts as noise, the usual 5 %."""
_TASKSET: Final = "--taskset"
"""Option choosing a held-out taskset."""
_CATEGORY: Final = "category/"
"""Prefix of figures of one category."""
_ERROR: Final = "/stderr"
"""Suffix of a figure's standard error."""


@click.command("evals")
@experiments_argument
@click.option("--version", type=click.IntRange(0), help="Show the answers of this weight version.")
@click.option("--taskset", help="The held-out taskset, if there are several.")
@click.option("--worst", "order", flag_value="worst", help="Show the answers with the lowest reward first.")
@click.option("--best", "order", flag_value="best", help="Show the answers with the highest reward first.")
@click.option("--changed-since", "since", type=click.IntRange(0), metavar="M", help="Compare with version M.")
@click.option("--row", type=click.IntRange(0), help="Show this held-out row, from 0, as each version answered it.")
@click.option("--reward", metavar="NAME", help="Judge the recorded answers by this reward; nothing is generated.")
@click.option("--reward-args", metavar="JSON", help="Arguments of that reward.")
@click.option("-n", "--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Number of answers.")
@click.option("--offset", type=click.IntRange(0), default=0, help="Number of answers to skip.")
@shared_options
@click.pass_obj
def command(
    settings: Settings,
    names: tuple[str, ...],
    version: int | None,
    taskset: str | None,
    order: Which | None,
    since: int | None,
    row: int | None,
    reward: str | None,
    reward_args: str | None,
    limit: int,
    offset: int,
) -> None:
    """Show the evaluations of experiment NAME: scores with their uncertainty, accuracy, several tries, lengths.

    Of several experiments, such as benches of models, checkpoints and services: one table of each metric of each
    held-out taskset, with its value and standard error, by the newest version.

    With --version, --worst, --best or --changed-since the answers of one version, by default the newest: prompt, answer
    and truth. --changed-since shows the answers whose reward changed, lost ones first, and whether the difference may
    be noise. --reward judges the recorded answers by another reward, on this machine.
    """
    from rftd.daemon.http.client.client import Client

    if row is not None and (version is not None or order is not None or since is not None):
        raise UsageError("--row shows every version", field="--row", fix="leave the other options out")
    if len(names) > 1:
        if any(option is not None for option in (version, order, since, row, reward)):
            raise UsageError("several experiments make one table", fix="name one for its answers")
        with Client(settings) as client:
            _print_table(client, settings, names, taskset)
        return
    [name] = names
    if reward_args is not None and reward is None:
        raise UsageError("--reward-args without --reward", field="--reward-args", fix="name the reward")
    if reward is not None and (row is not None or since is not None):
        raise UsageError("--reward judges one version", field="--reward", fix="leave --row and --changed-since out")
    with Client(settings) as client:
        if reward is not None:
            from rftd.daemon.http.client.judging import judged

            arguments = _arguments(reward_args)
            version = _newest(client, name, taskset) if version is None else version
            judgement = _ordered(judged(client, name, version, taskset, reward, arguments), order)
            if not emitted(to_wire(judgement), settings):
                _print_lines(_judgement_lines(judgement, limit, offset), judgement.notes)
            return
        if row is not None:
            held_out = client.ask(evaluations.held_out, name=name, row=row, taskset=taskset)
            if not emitted(held_out.plain(), settings):
                _print_lines(_history_lines(held_out.value), held_out.value.notes)
            return
        if version is None and order is None and since is None:
            _print_list(client, settings, name, taskset)
            return
        answer = client.ask(
            evaluations.evaluation,
            name=name,
            version=_newest(client, name, taskset) if version is None else version,
            taskset=taskset,
            order=order or ("row" if since is None else "changed"),
            against=since,
            limit=limit,
            offset=offset,
        )
    if not emitted(answer.plain(), settings):
        _print_lines(_evaluation_lines(answer.value), answer.value.notes)
        if answer.value.next is not None and settings.verbosity >= 0:
            say(f"next page: --offset {answer.value.next}", err=True)


def _newest(client: Client, name: str, taskset: str | None) -> int:
    """Returns the newest evaluated version."""
    rows = _every(client, name, taskset).items
    if not rows:
        raise NotFoundError("nothing was evaluated yet", field=_TASKSET if taskset else None, fix="see rftd evals NAME")
    return rows[-1].version


def _every(client: Client, name: str, taskset: str | None) -> history.EvalList:
    """Returns the evaluations of all pages."""
    page = client.ask(history.evals, name=name, taskset=taskset).value
    rows = page.items
    while page.next is not None:
        page = client.ask(history.evals, name=name, taskset=taskset, cursor=page.next).value
        rows += page.items
    return history.EvalList(items=rows, next=None)


def _print_table(client: Client, settings: Settings, names: Sequence[str], taskset: str | None) -> None:
    """Prints each metric of each taskset by the newest version of each experiment, in the form of lm-eval."""
    newest: dict[tuple[str, str], EvalRow] = {}
    for name in dict.fromkeys(names):
        for row in _every(client, name, taskset).items:
            newest[row.taskset, name] = row  # rows come in the order of versions
        if not any(measured == name for _, measured in newest):
            raise NotFoundError(f"nothing of {name} was evaluated yet", fix="see rftd evals NAME")
    measurements: dict[str, dict[str, dict[str, float | int | None]]] = {}
    for (held_out, name), row in newest.items():
        measurements.setdefault(held_out, {})[name] = {"version": row.version, "rows": row.rows, **_metrics(row)}
    if emitted({"results": measurements}, settings):
        return
    lines = [
        (held_out, metric, name, str(figures["version"]), number(metric_value), _error_text(figures, metric))
        for held_out, measured in measurements.items()
        for metric in dict.fromkeys(metric for figures in measured.values() for metric in figures)
        if metric not in ("version", "rows") and not metric.endswith(_ERROR)
        for name, figures in measured.items()
        if (metric_value := figures.get(metric)) is not None
    ]
    console = console_of(settings)
    headers = ("TASKSET", "METRIC", "EXPERIMENT", "VERSION", "VALUE", "STDERR")
    console.print(table(headers, lines, right=frozenset(headers[3:]), width=console.width, first_to_go=("VERSION",)))


def _metrics(row: EvalRow) -> dict[str, float | int | None]:
    """Returns the figures of an evaluation for comparing experiments, each before its standard error."""
    metrics: dict[str, float | int | None] = {"score": row.score, f"score{_ERROR}": row.metrics.get(f"score{_ERROR}")}
    if (accuracy := row.metrics.get("accuracy/mean")) is not None:
        metrics |= {"accuracy": accuracy, f"accuracy{_ERROR}": row.metrics.get(f"accuracy{_ERROR}")}
    named = [name for name in row.metrics if "@" in name or name.startswith(("reward/", _CATEGORY))]
    return metrics | {name: row.metrics[name] for name in named if not name.endswith("/answers")}


def _error_text(figures: Mapping[str, float | int | None], metric: str) -> str:
    """Returns the standard error of a metric as `± 0.0123`; empty without one."""
    error = figures.get(f"{metric}{_ERROR}")
    return "" if error is None else f"± {error:.4f}"


def _arguments(arguments_json: str | None) -> dict[str, Any]:
    """Returns the arguments of a reward. Raises UsageError."""
    try:
        arguments = json.loads(arguments_json) if arguments_json else {}
    except ValueError as error:
        raise UsageError(f"{arguments_json!r} is no JSON: {error}", field="--reward-args") from None
    if not isinstance(arguments, dict):
        fix = "write a mapping such as '{\"tolerance\": 0.01}'"
        raise UsageError(f"{arguments_json!r} is no mapping", field="--reward-args", fix=fix)
    return arguments


def _ordered(judgement: Judgement, order: Which | None) -> Judgement:
    """Returns the judgement with its answers in the requested order; by default, the largest change of reward first."""
    sign = -1 if order == "best" else 1
    judged_answers = judgement.items
    if order in ("worst", "best"):
        judged_answers = sorted(judged_answers, key=lambda judged_answer: sign * judged_answer.reward)
    else:
        judged_answers = sorted(
            judged_answers, key=lambda judged_answer: -abs(judged_answer.reward - judged_answer.answer.reward)
        )
    return msgspec.structs.replace(judgement, items=judged_answers)


def _judgement_lines(judgement: Judgement, limit: int, offset: int) -> Iterator[str]:
    """Yields the lines of recorded answers scored by another reward."""
    row = judgement.evaluation
    yield labelled("evaluation", f"{row.taskset}, version {row.version}, {row.rows} rows")
    yield labelled("reward", f"{judgement.reward}, of {judgement.judged} of {judgement.answers} recorded answers")
    interval = "" if judgement.low is None else f"  ({judgement.low:.3f}..{judgement.high:.3f})"
    yield labelled("score", f"{number(judgement.score)}{interval}; recorded {number(judgement.recorded)}")
    if judgement.parts:
        yield labelled("parts", ", ".join(f"{name} {number(mean)}" for name, mean in judgement.parts.items()))
    yield labelled(
        "rows", f"{judgement.won} higher, {judgement.lost} lower, {judgement.same} same, p {judgement.p:.2g}"
    )
    for judged_answer in judgement.items[offset : offset + limit]:
        yield ""
        yield labelled("judged", f"reward {judged_answer.reward:.3f}")
        yield from _answer_block(judged_answer.answer)


def _print_list(client: Client, settings: Settings, name: str, taskset: str | None) -> None:
    """Prints the evaluations of an experiment as a table."""
    evaluations_of = _every(client, name, taskset)
    if emitted(to_wire(evaluations_of), settings):
        return
    rows = evaluations_of.items
    if not rows:
        say("nothing was evaluated yet", err=True)
        return
    console = console_of(settings)
    extra = [figure for figure in _tries_figures(rows) if any(figure in row.metrics for row in rows)]
    headers = ("VERSION", "TASKSET", "ROWS", "SCORE", "95 %", "ACCURACY", "95 %", *map(str.upper, extra), "LENGTH")
    lines = [
        (
            str(row.version),
            row.taskset,
            str(row.rows),
            number(row.score),
            _interval_text(row, "score"),
            number(row.metrics.get("accuracy/mean")),
            _interval_text(row, "accuracy"),
            *(number(row.metrics.get(figure)) for figure in extra),
            number(row.metrics.get("response_length/mean"), 1),
        )
        for row in rows
    ]
    right = frozenset(headers) - {"TASKSET"}
    go = ("LENGTH", *map(str.upper, extra))
    console.print(table(headers, lines, right=right, width=console.width, first_to_go=go))


def _tries_figures(rows: list[EvalRow]) -> list[str]:
    """Returns the figures over several answers to a row, for the largest number of tries."""
    tries = max((int(row.metrics.get("tries") or 1) for row in rows), default=1)
    return [f"{figure}@{tries}" for figure in ("pass", "majority", "best", "worst")] if tries > 1 else []


def _interval_text(row: EvalRow, figure: str) -> str:
    """Returns the 95 % interval of a figure; `-` without one."""
    low = row.metrics.get(f"{figure}/low")
    high = row.metrics.get(f"{figure}/high")
    return "-" if low is None or high is None else f"{low:.3f}..{high:.3f}"


def _print_lines(lines: Iterator[str], notes: list[str]) -> None:
    """Prints the lines, then the notes."""
    say("\n".join([*lines, *(labelled("note", note) for note in notes)]), indent=LABEL)


def _evaluation_lines(page: EvaluationPage) -> Iterator[str]:
    """Yields the lines of an evaluation and the requested answers."""
    row = page.evaluation
    yield labelled("evaluation", f"{row.taskset}, version {row.version}, {row.rows} rows")
    yield labelled("score", f"{number(row.score)}  ({_interval_text(row, 'score')})")
    if (accuracy := row.metrics.get("accuracy/mean")) is not None:
        yield labelled("accuracy", f"{number(accuracy)}  ({_interval_text(row, 'accuracy')})")
    yield from _figure_lines(row.metrics)
    if page.kept < page.answers:
        yield labelled("texts", f"of {page.kept} of {page.answers} answers")
    if page.comparison is not None:
        yield labelled("compared", _comparison_words(page.comparison))
    for pair in page.items:
        yield ""
        yield from _answer_block(pair.answer)
        if pair.before is not None and page.comparison is not None:
            yield labelled("before", f"version {page.comparison.version}: {_verdict(pair.before)}")
            yield labelled("", pair.before.text)


def _figure_lines(metrics: Mapping[str, float | None]) -> Iterator[str]:
    """Yields the lines of several tries, of the lengths of right and wrong answers, and of categories, if present."""
    tried = [name for name in metrics if "@" in name and not name.startswith(_CATEGORY)]
    if tried:
        yield labelled("tries", ", ".join(f"{name} {number(metrics[name])}" for name in tried))
    lengths = [
        f"{kind} {number(mean, 1)}"
        for kind in ("right", "wrong")
        if (mean := metrics.get(f"response_length/{kind}/mean")) is not None
    ]
    if lengths:
        yield labelled("tokens", ", ".join(lengths))
    for name in metrics:
        category = name.removeprefix(_CATEGORY).removesuffix("/answers")
        if name == f"{_CATEGORY}{category}/answers":
            accuracy = metrics.get(f"{_CATEGORY}{category}/accuracy")
            right = "" if accuracy is None else f", accuracy {number(accuracy)}"
            score = number(metrics.get(f"{_CATEGORY}{category}/score"))
            yield labelled("category", f"{category}: score {score}{right}, {number(metrics[name], 0)} answers")


def _comparison_words(comparison: VersionComparison) -> str:
    """Returns the comparison with another version in words, with its p-value."""
    verdict = "may be noise" if comparison.p > _NOISE_ABOVE else "more than noise"
    return (
        f"with version {comparison.version}: {comparison.won} won, {comparison.lost} lost, {comparison.same} same; "
        f"{comparison.difference:+.3f}, p {comparison.p:.2g}: {verdict}"
    )


def _history_lines(held_out: HeldOutRow) -> Iterator[str]:
    """Yields the lines of one row through versions."""
    yield labelled("row", f"{held_out.row} of {held_out.taskset}")
    first = next(
        (answer for version_answers in held_out.items for answer in version_answers.answers if answer.kept), None
    )
    if first is not None:
        yield labelled("prompt", first.prompt)
        yield labelled("truth", first.truth)
    for version_answers in held_out.items:
        for answer in version_answers.answers:
            yield ""
            yield labelled(f"version {version_answers.version}", _verdict(answer))
            yield from _answer_lines(answer)


def _answer_block(answer: AnswerView) -> Iterator[str]:
    """Yields the lines of one answer: scores, prompt, text and truth."""
    yield labelled(f"row {answer.row}", _verdict(answer))
    if answer.kept:
        yield labelled("prompt", answer.prompt)
        yield from _answer_lines(answer)
        yield labelled("truth", answer.truth)


def _answer_lines(answer: AnswerView) -> Iterator[str]:
    """Yields the lines of an answer's text, or of its error."""
    if answer.error:
        yield labelled("error", answer.error)
    elif answer.kept:
        cut = f" [the beginning of {answer.chars} characters]" if len(answer.text) < answer.chars else ""
        yield labelled("answer", answer.text + cut)
        if answer.extracted is not None:
            yield labelled("extracted", answer.extracted)


def _verdict(answer: AnswerView) -> str:
    """Returns the scores of an answer in one line."""
    words = [f"answer {answer.attempt + 1}"] if answer.attempt else []
    words.append(f"reward {answer.reward:.3f}")
    if answer.right is not None:
        words.append("right" if answer.right else "wrong")
    words += [f"{name} {part_reward:g}" for name, part_reward in answer.parts.items()]
    words.append(f"{answer.tokens} tokens")
    words += [answer.finish] if answer.finish else []
    words += [answer.category] if answer.category else []
    return ", ".join(words) + ("" if answer.kept else ", no text was kept")
