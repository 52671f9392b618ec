"""A run, a group and a rollout as HTML, for notebooks and reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rftd.daemon.cli.output.quantity import number
from rftd.daemon.cli.output.terminal import one_line
from rftd.daemon.http.client.html import MOST_CHARACTERS, Html, block, curve, definitions, tag
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.storage.queries.experiments import ExperimentSummary

_COLOURS: Final = {"running": "#3b7dd8", "completed": "#2e8540", "failed": "#c0392b", "rejected": "#c0392b"}
"""Colour of each state of an experiment, as a CSS colour."""
_CARD: Final = "border:1px solid rgba(128,128,128,.4);border-radius:6px;padding:.6em .9em;margin:.3em 0;max-width:60em"
"""Style of a card's frame."""


def run_card(page: ExperimentPage) -> Html:
    """Returns an experiment's page as HTML: state, progress, reward, held-out scores, and the reason of a problem."""
    summary = page.experiment.summary
    share = summary.step / summary.total_steps if summary.total_steps else 0.0
    scores: dict[str, list[tuple[float, float]]] = {}
    for row in page.evals:
        if row.score is not None:
            scores.setdefault(row.taskset, []).append((row.version, row.score))
    lines = [("step", f"{summary.step} of {summary.total_steps}" + (f" ({summary.stage})" if summary.stage else ""))]
    if summary.reward_mean is not None:
        lines.append(("reward", number(summary.reward_mean)))
    lines += [(f"held out: {name}", number(points[-1][1])) for name, points in scores.items()]
    if summary.reason:
        lines.append((summary.code or "reason", summary.reason))
    if page.waiting:
        lines.append(("waiting", page.waiting))
    if page.signal is not None and page.signal.reason:
        lines.append(("signal", page.signal.reason))
    curves = [curve([(point.step, point.reward_mean) for point in page.reward_curve], label="reward")]
    curves += [curve(points, label=name) for name, points in scores.items()]
    return tag("div", _title_line(summary), _progress_bar(share), definitions(lines), tag("div", *curves), style=_CARD)


def progress_card(summary: ExperimentSummary, points: Sequence[tuple[float, float]]) -> Html:
    """Returns an experiment's progress as HTML, with the rewards seen so far."""
    share = summary.step / summary.total_steps if summary.total_steps else 0.0
    return tag(
        "div",
        _title_line(summary),
        _progress_bar(share),
        tag("div", line_of(summary)),
        curve(points, label="reward"),
        style=_CARD,
    )


def line_of(summary: ExperimentSummary) -> str:
    """Returns one line about an experiment: name, state, stage, step and reward."""
    parts = [
        one_line(summary.name),
        summary.state,
        summary.stage or "",
        f"step {summary.step}/{summary.total_steps}",
        "" if summary.reward_mean is None else f"reward {number(summary.reward_mean)}",
    ]
    return "  ".join(filter(None, parts))


def rollout_card(
    columns: dict[str, Any], texts: Sequence[tuple[str, str]] = (), *, most: int = MOST_CHARACTERS
) -> Html:
    """Returns a rollout as HTML: its figures in one line, and below each text under its label, cut after `most`."""
    figures = [f"{name} {_figure_text(columns[name])}" for name in _ROLLOUT_COLUMNS if columns.get(name) is not None]
    parts = [
        tag("div", tag("small", label), block(words, most=most), style="margin-top:.4em") for label, words in texts
    ]
    return tag("div", tag("b", str(columns.get("id", ""))[:8]), "  ", "   ".join(figures), *parts, style=_CARD)


_ROLLOUT_COLUMNS: Final = ("reward", "advantage", "response_tokens", "staleness_versions", "finish", "step", "state")
"""Columns in the first line of a rollout."""


def group_card(title: str, texts: Sequence[tuple[str, str]], cards: Sequence[Html]) -> Html:
    """Returns the rollouts of one group side by side, below the texts shared by all."""
    style = "display:grid;grid-template-columns:repeat(auto-fill,minmax(22em,1fr));gap:.4em"
    shared = (tag("div", tag("small", label), block(words)) for label, words in texts)
    return tag("div", tag("b", title), *shared, tag("div", *cards, style=style))


def _title_line(summary: ExperimentSummary) -> Html:
    """Returns name and state of an experiment as a line of HTML."""
    badge = f"background:{_COLOURS.get(summary.state, '#777')};color:#fff;border-radius:4px;padding:0 .5em"
    return tag("div", tag("b", summary.name), "  ", tag("span", summary.state, style=badge))


def _progress_bar(share: float) -> Html:
    """Returns a progress bar as HTML, filled to this share; a share above 1 fills the whole bar."""
    inner = tag("div", style=f"height:4px;width:{min(1.0, share):.1%};background:#3b7dd8")
    return tag("div", inner, style="background:rgba(128,128,128,.25);margin:.4em 0")


def _figure_text(figure: Any) -> str:
    """Returns a figure of a rollout as text; a float has three significant digits."""
    return f"{figure:.3g}" if isinstance(figure, float) else str(figure)
