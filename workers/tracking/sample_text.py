"""Tables of samples as one text, for services that show no tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rftd.workers.tracking.point import COLUMNS, Sample

_ESCAPES: Final = str.maketrans({mark: f"&#{ord(mark)};" for mark in "<>&\\`*_{}[]#|~"} | {"\n": "<br>", "\r": ""})
"""What stands in Markdown for the marks of Markdown and HTML."""


def markdown_table(samples: Sequence[Sample]) -> str:
    """The samples as a table of Markdown; what a model wrote is shown as it is, and marks nothing up."""
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    lines += [_line([_cell(value) for value in sample.cells()]) for sample in samples]
    return "\n".join(lines)


def plain_text(samples: Sequence[Sample]) -> str:
    """The samples one below the other, each value below its name."""
    rows = []
    for sample in samples:
        cells = zip(COLUMNS, sample.cells(), strict=True)
        rows.append("\n".join(f"{column}: {_shown(value)}" for column, value in cells if value not in (None, "")))
    return "\n\n---\n\n".join(rows)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Any) -> str:
    return _shown(value).translate(_ESCAPES)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
