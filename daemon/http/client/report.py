"""`report_of`: a run, a group or several runs as one self-contained HTML page, without scripts or requests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import yaml

from rftd.daemon.cli.output.quantity import lasting, number, size
from rftd.daemon.http.client.cards import group_card, rollout_card, run_card
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.client.html import Html, block, curve, definitions, tag
from rftd.daemon.http.client.rollouts import SeriesPoint, TextRollout, labelled_texts
from rftd.daemon.http.client.rows import RowList
from rftd.daemon.http.client.run import RunHandle
from rftd.daemon.http.views import series as series_views
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.http.views.series import Series
from rftd.ops.clock import Clock, iso
from rftd.ops.errors import NotFoundError, RftdError
from rftd.storage.queries.experiments import ExperimentSummary
from rftd.storage.queries.steps import EvalRow

_STYLE: Final = """
body{font:14px/1.45 system-ui,sans-serif;max-width:72em;margin:1.5em auto;padding:0 1em;color:#1d2430;background:#fff}
h2{font-size:1.15em;margin:1.8em 0 .5em;border-bottom:1px solid #ccd;padding-bottom:.2em}
table{border-collapse:collapse;font-size:.92em}th,td{padding:.15em .8em .15em 0;text-align:left;vertical-align:top}
table table{font-size:1em}svg{margin:.3em .8em .3em 0}summary{cursor:pointer}small{color:#667}
"""
"""Style sheet of the page."""
_WANTED: Final = (
    ("reward",),
    ("loss", "pg_loss", "actor/loss"),
    ("response_length/mean", "response_length"),
    ("entropy", "actor/entropy"),
    ("grad_norm", "actor/grad_norm"),
    ("kl", "actor/kl", "ppo_kl"),
    ("staleness_mean", "staleness"),
    ("signal/equal_groups",),
    ("tokens_per_s", "perf/throughput"),
)
"""Figures of a report: of each group of names, the first one of an experiment."""
_MOST_CURVES: Final = 9
"""Maximum number of curves in a report."""
_SAMPLES: Final = 3
"""Number of best and of worst rollouts shown."""
_MOST_TEXT: Final = 4000
"""Maximum characters of one text of a sample."""
_MOST_GROUP_TEXT: Final = 20_000
"""Maximum characters of a text in the report of a group."""
_MOST_ANSWERS: Final = 64
"""Maximum number of answers in the report of a group."""
_MOST_CONFIG: Final = 200_000
"""Maximum characters of the configuration in a report."""
_MOST_PARENTS: Final = 50
"""Maximum number of experiments in a report's lineage, the reported one included."""


def report_of(client: Client, name: str, *, clock: Clock, version: str) -> str:
    """Returns the report of an experiment: figures, curves, samples, evaluations, lineage and configuration.

    Raises NotFoundError. Texts missing on the daemon are replaced by the reason.
    """
    run = client.run(name)
    page = run.page()
    return page_of(
        page,
        curves=list(_draw_curves(client, run)),
        samples=list(_sample_cards(run)),
        evals=run.evals(),
        ancestors=_ancestors(client, page.experiment.summary),
        made=_made(client, clock, version),
    )


def page_of(
    page: ExperimentPage,
    *,
    curves: Sequence[Html],
    samples: Sequence[Html],
    evals: RowList[EvalRow],
    ancestors: Sequence[ExperimentSummary],
    made: str,
) -> str:
    """Returns the report of these parts; `ancestors` are the experiment and its parents, the oldest first."""
    summary = page.experiment.summary
    sections = [
        tag("h1", f"{summary.project}/{summary.name}"),
        run_card(page),
        _section_of("Figures", definitions(list(_figure_lines(page)))),
        _section_of("Curves", *curves),
        _section_of("Samples", *samples),
        _section_of("Evaluations", _table_of(evals) if evals else tag("p", "none")),
        _section_of("Stages", _table_of(RowList.of(page.experiment.stages))),
        _section_of("Lineage", *_lineage_lines(ancestors)),
        _section_of("Configuration", _folded_block("the file as accepted", _yaml_text(page.experiment.config))),
    ]
    return _document(f"{summary.name}: {summary.state}", *sections, made=made)


def group_report_of(client: Client, name: str, group: str, *, clock: Clock, version: str) -> str:
    """Returns the report of one group: each answer with its prompt and figures, at most 64 answers. Raises
    NotFoundError.
    """
    run = client.run(name)
    texts = run.group(group)
    cards = [
        rollout_card(rollout, labelled_texts(rollout), most=_MOST_GROUP_TEXT)
        for rollout in texts.rollouts[:_MOST_ANSWERS]
    ]
    left_out = len(texts.rollouts) - len(cards)
    return _document(
        f"a group of {run.name}",
        tag("h1", f"{run.name}: a group of {len(texts.rollouts)} rollouts"),
        tag("p", f"group {group}"),
        group_card("answers", [], cards),
        *([tag("p", f"{left_out} more answers are left out")] if left_out else []),
        made=_made(client, clock, version),
    )


def runs_report_of(client: Client, names: Sequence[str], *, clock: Clock, version: str) -> str:
    """Returns the report of several runs: cards, differing fields, and figures at equal steps.

    Raises NotFoundError, and UsageError for one run or one named twice.
    """
    differences = client.diff(*names)
    compared = client.compare(*names)
    pages = [client.run(name).page() for name in names]
    titles = ", ".join(page.experiment.summary.name for page in pages)
    return _document(
        f"{titles}: compared",
        tag("h1", titles),
        *(run_card(page) for page in pages),
        _section_of("Differing fields", _table_of(differences) if differences else tag("p", "none")),
        _section_of(
            "Figures at equal steps", _table_of(compared) if compared else tag("p", "a run has trained no step")
        ),
        made=_made(client, clock, version),
    )


def _made(client: Client, clock: Clock, version: str) -> str:
    """Returns the origin of a report in words: release, time in UTC, and the daemon's address."""
    return f"rftd {version}, {iso(clock.now_ns())}, from the daemon at {client.url}"


def _document(title: str, *sections: Html, made: str) -> str:
    """Returns a whole page of these sections, with a policy against scripts and requests."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        # A second guard behind the escapes: a browser runs and fetches nothing of the page.
        tag("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        tag("meta", name_="viewport", content="width=device-width"),
        tag("title", title),
        tag("style", Html(_STYLE)),
    )
    body = tag("body", *sections, tag("p", tag("small", made)))
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def _section_of(title: str, *children: str) -> Html:
    """Returns a section with a heading."""
    return tag("section", tag("h2", title), *children)


def _figure_lines(page: ExperimentPage) -> Iterable[tuple[str, str]]:
    """Yields the figures of an experiment with their labels."""
    summary = page.experiment.summary
    books = page.experiment.books
    yield "id", summary.id
    yield "submitted", iso(summary.submitted_ns)
    if summary.started_ns is not None:
        yield "took", lasting((summary.state_ns - summary.started_ns) / 1e9)
    yield "steps", f"{summary.step} of {summary.total_steps}"
    yield "reward", number(summary.reward_mean)
    yield "experiences", f"{books.produced} produced, {books.planned} planned, {books.waiting} waiting"
    if books.retired:
        yield "dropped", ", ".join(f"{reason} {count}" for reason, count in books.retired.items())
    if books.failed_rollouts:
        yield "failed rollouts", str(books.failed_rollouts)
    if summary.staleness_p95 is not None:
        yield "staleness", f"at most {summary.staleness_p95} weight versions for 95 of 100"
    if page.weights:
        newest = page.weights[-1]
        yield "newest weights", f"version {newest.version}, {size(newest.size_bytes)}, {newest.checksum}"
    for checkpoint in page.checkpoints[-1:]:
        yield "newest checkpoint", f"step {checkpoint.step}, {checkpoint.path}"
    if summary.labels:
        yield "labels", ", ".join(f"{key}={label}" for key, label in summary.labels.items())
    yield from (("warning", warning) for warning in page.experiment.warnings)


def _draw_curves(client: Client, run: RunHandle) -> Iterable[Html]:
    """Returns the curves of the experiment's figures, or one paragraph if no step was trained."""
    first = client.ask(series_views.series, runs=[run.id]).value
    if not first.at:
        return [tag("p", "no step was trained")]
    metrics = _report_figures(first)
    points = run.series(*metrics)
    return [_draw_curve([point for point in points if point.metric == metric], metric) for metric in metrics]


def _report_figures(series: Series) -> list[str]:
    """Returns the names of the report's figures: the wanted ones of the experiment, then its held-out scores."""
    names = [name for described in series.runs for name in described.metrics]
    chosen = [next((name for name in group if name in names), "") for group in _WANTED]
    scores = [name for name in names if name.startswith(("eval/", "held-out/")) and name.endswith("/score")]
    return list(dict.fromkeys([name for name in chosen if name] + scores))[:_MOST_CURVES]


def _draw_curve(points: Sequence[SeriesPoint], metric: str) -> Html:
    """Returns the curve of one figure, with a band from its 10th to its 90th percentile."""
    line = [(point.at, _nan_for_none(point.mean)) for point in points]
    band = [(point.at, _nan_for_none(point.p10), _nan_for_none(point.p90)) for point in points]
    return curve(line, label=metric, band=band, width=420, height=150)


def _nan_for_none(figure: float | None) -> float:
    """Returns a figure as a float; NaN for None, drawn as a gap."""
    return math.nan if figure is None else figure


def _sample_cards(run: RunHandle) -> Iterable[Html]:
    """Returns the best and the worst rollouts as cards, or a paragraph saying why there are none."""
    try:
        best = run.rollouts(order="-reward", limit=_SAMPLES)
        worst = run.rollouts(order="reward", limit=_SAMPLES)
    except RftdError as error:  # payloads dropped, a damaged tokenizer, a daemon without text
        return [tag("p", f"no samples: {error.what}")]
    if not best:
        return [tag("p", "no rollout has ended")]
    return [_side_by_side("highest rewards", best), _side_by_side("lowest rewards", worst)]


def _side_by_side(title: str, rollouts: Sequence[TextRollout]) -> Html:
    """Returns rollouts beside each other under a title."""
    cards = [rollout_card(rollout, labelled_texts(rollout), most=_MOST_TEXT) for rollout in rollouts]
    return group_card(title, [], cards)


def _ancestors(client: Client, summary: ExperimentSummary) -> list[ExperimentSummary]:
    """Returns the experiment and its ancestors, the oldest first, as far as the daemon has them."""
    chain = [summary]
    while chain[-1].parent is not None and len(chain) < _MOST_PARENTS:
        try:
            chain.append(client.run(chain[-1].parent).summary())
        except NotFoundError:
            break
    return chain[::-1]


def _lineage_lines(ancestors: Sequence[ExperimentSummary]) -> Iterable[Html]:
    """Yields a line for each experiment of a lineage, indented by depth."""
    for depth, summary in enumerate(ancestors):
        fork = f" at step {summary.forked_step} of {summary.parent}" if summary.parent is not None else ""
        yield tag("div", f"{summary.name} ({summary.id}){fork}", style=f"padding-left:{2 * depth}em")


def _yaml_text(config: Any) -> str:
    """Returns a configuration as YAML."""
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=110)


def _table_of(rows: RowList[Any]) -> Html:
    """Returns rows as a table."""
    return Html(rows._repr_html_())


def _folded_block(title: str, words: str) -> Html:
    """Returns a text folded below its title."""
    return tag("details", tag("summary", title), block(words, most=_MOST_CONFIG))
