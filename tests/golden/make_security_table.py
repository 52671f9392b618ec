"""Writes the table of trust into docs/security.md: python tests/golden/make_security_table.py, after a change to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from rftd.daemon.trust.table import table_as_markdown

PAGE: Final = Path(__file__).parents[2] / "docs" / "security.md"
_TABLE: Final = re.compile(r"^\| who \|.*?\n(?!\|)", re.MULTILINE | re.DOTALL)


def text() -> str:
    """The page as it should be."""
    return _TABLE.sub(lambda _: table_as_markdown(), PAGE.read_text(), count=1)


if __name__ == "__main__":
    PAGE.write_text(text())
