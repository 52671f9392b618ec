"""Tables of samples as one text, for services without tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rftd.workers.tracking.point import COLUMNS, Sample

_ESCAPES: Final = str.maketrans({mark: f"&#{ord(mark)};" for mark in "<>&\\`*_{}[]#|~"} | {"\n": "<br>", "\r": ""})
"""Replacements for the special characters of Markdown and HTML."""


def markdown_table(samples: Sequence[Sample]) -> str:
    """Returns the samples as a table in Markdown; a model's text is shown literally, without markup."""
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    lines += [_line([_cell(cell) for cell in sample.cells()]) for sample in samples]
    return "\n".join(lines)


def plain_text(samples: Sequence[Sample]) -> str:
    """Returns the samples one below the other, each value after its name."""
    rows = []
    for sample in samples:
        cells = zip(COLUMNS, sample.cells(), strict=True)
        rows.append("\n".join(f"{column}: {_shown(cell)}" for column, cell in cells if cell not in (None, "")))
    return "\n\n---\n\n".join(rows)


def _line(cells: Sequence[str]) -> str:
    """Returns cells as a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def _cell(content: Any) -> str:
    """Returns a cell's content with Markdown's characters escaped."""
    return _shown(content).translate(_ESCAPES)


def _shown(content: Any) -> str:
    """Returns a cell's content as text."""
    if content is None:
        return ""
    return f"{content:.6g}" if isinstance(content, float) else str(content)
