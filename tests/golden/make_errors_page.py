"""Writes docs/errors.md from the error classes: their docstrings and remedies.

`.venv/bin/python -P tests/golden/make_errors_page.py`, after adding a code; a test says when the page is out of date.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Final

from rftd.daemon.cli.verbs.explain import BUG_REMEDY, codes

PAGE: Final = Path(__file__).parents[2] / "docs" / "errors.md"

HEAD: Final = """\
# Errors

Written by `tests/golden/make_errors_page.py` from the error classes; do not edit. Every error of the command line and
the API carries one of these codes, says where it happened and what to do. `rftd explain CODE` prints an entry.

| code | class | exit status | HTTP status |
|---|---|---|---|
"""

TAIL: Final = """
## RFTD-BUG

rftd itself failed, not your input. Exit status 70.

Fix: {remedy}
"""


def text() -> str:
    """The page as it should be."""
    found = codes()
    rows = [
        f"| [{code}](#{code.lower()}) | {kind.__name__} | {kind.exit_status} | {kind.http_status} |\n"
        for code, kind in found.items()
    ]
    entries = [
        f"\n## {code}\n\n{' '.join((inspect.getdoc(kind) or '').split())}\n\nFix: {kind.remedy}\n"
        for code, kind in found.items()
    ]
    return HEAD + "".join(rows) + "".join(entries) + TAIL.format(remedy=BUG_REMEDY)


if __name__ == "__main__":
    PAGE.write_text(text())
