"""The page on security: its table is that of the code, and so are the limits that it gives."""

from __future__ import annotations

import sys
from pathlib import Path

from rftd.daemon.trust.asker import AccessRole
from rftd.daemon.trust.quota import QUOTAS
from rftd.daemon.trust.table import TABLE

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "golden"))


def test_the_table_of_the_page_is_that_of_the_code() -> None:
    from make_security_table import PAGE, text

    assert PAGE.read_text() == text(), "run tests/golden/make_security_table.py"


def test_every_role_is_in_the_table() -> None:
    assert {role.label for role in AccessRole} <= {row.who for row in TABLE}


def test_the_limits_of_the_page_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    names = {
        "submissions": "submissions_per_hour",
        "queued": "queued",
        "streams": "streams",
        "connections": "connections",
    }
    for option, name in names.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"| `--{option} N`")]
        told = [int(cell) for cell in line.split("|")[-4:-1]]
        assert told == [getattr(QUOTAS[role], name) for role in ("read", "submit", "admin")], line
