"""The list of runs: words of the search as parameters of the list's view, and forks under their parents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from rftd.storage.queries.experiments import ExperimentSummary
from rftd.streams.folds.spine import Status

Shown = Literal["all", "active", "ended"]
"""Runs in every state, in one of progress, or in a final one."""
_KEYS: Final = ("state", "project", "signal")
"""Filters of the list written as `KEY:TEXT` in the search field."""
_MAX_DEPTH: Final = 4
"""Largest indentation of a fork of forks."""


class RunRow(NamedTuple):
    """A run of the list, with its depth below its ancestors in the list."""

    depth: int
    """Indentation of a fork below its ancestors, 0 for a run without an ancestor in the list."""
    run: ExperimentSummary
    """The run with state, progress and recent figures."""


def parameters_of(search: str, shown: Shown) -> dict[str, Any]:
    """Returns the parameters of `experiments.listed`: `KEY=VALUE` is a label, `state:`, `project:` and `signal:` name
    their filter, and all further words belong to the name.
    """
    words: list[str] = []
    labels: list[str] = []
    keys: dict[str, str] = {}
    for word in search.split():
        key, colon, text = word.partition(":")
        if colon and key in _KEYS and text:
            keys[key] = text
        elif "=" in word:
            labels.append(word)
        else:
            words.append(word)
    states = [status for status in Status if status.value == keys["state"]] if "state" in keys else _states_of(shown)
    return {
        "state": states,
        "label": labels or None,
        "project": keys.get("project"),
        "words": " ".join(words) or None,
        "signal": keys["signal"] if keys.get("signal") in ("lost", "present") else None,
    }


def _states_of(shown: Shown) -> list[Status] | None:
    """Returns the states shown by a choice of the list; None for all states."""
    return None if shown == "all" else [status for status in Status if status.ended == (shown == "ended")]


def as_tree(runs: Sequence[ExperimentSummary]) -> list[RunRow]:
    """Returns the runs in their order, each fork right below its parent if the parent is in the list."""
    present = {run.id for run in runs}
    forks: dict[str, list[ExperimentSummary]] = {}
    for run in runs:
        if run.parent in present and run.parent is not None:
            forks.setdefault(run.parent, []).append(run)
    rows: list[RunRow] = []
    waiting = [RunRow(0, run) for run in reversed(runs) if run.parent not in present]
    while waiting:
        row = waiting.pop()
        rows.append(row)
        depth = min(row.depth + 1, _MAX_DEPTH)
        waiting += [RunRow(depth, fork) for fork in reversed(forks.get(row.run.id, ()))]
    return rows
