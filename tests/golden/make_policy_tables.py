"""Writes the tables of policies in docs/concepts.md and docs/experiment_file.md from what the policies declare.

`.venv/bin/python -P tests/golden/make_policy_tables.py`, after adding or changing a policy; a test says when a table is
out of date.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from rftd.daemon.config.schema.policy import fields_of
from rftd.workers.control.policies.paced import Paced
from rftd.workers.control.policies.registry import BUILT_IN, built_in

DOCS: Final = Path(__file__).parents[2] / "docs"
BEGIN: Final = "<!-- table written by tests/golden/make_policy_tables.py -->\n"
END: Final = "<!-- end of the table -->\n"


def policies() -> dict[str, type[Paced]]:
    """Our policies by kind, in the order of the registry."""
    return {kind: policy for kind in BUILT_IN if (policy := built_in(kind)) is not None}


def kinds_table() -> str:
    """A row for each kind: where it is from, what it admits, whether it sweeps, its fields, its purpose."""
    lines = [
        "| kind | from | admits while supply is below | sweeps | own fields | for |\n",
        "|---|---|---|---|---|---|\n",
    ]
    for kind, policy in policies().items():
        page = policy.page
        assert page is not None, f"{kind} has no page"
        own = ", ".join(f"`{each.name}`" for each in fields_of(policy)) or "none"
        sweeps = "yes" if policy.keeps_bound else "no"
        lines.append(f"| `{kind}` | {page.source} | {page.admits} | {sweeps} | {own} | {page.purpose} |\n")
    return "".join(lines)


def fields_table() -> str:
    """A row for each field of a single kind, or of several: its defaults, and what it means."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for kind, policy in policies().items():
        for each in fields_of(policy):
            rows.setdefault((each.name, _meaning(each)), {})[kind] = each.default
    lines = ["| field | default | meaning |\n", "|---|---|---|\n"]
    for (name, meaning), defaults in rows.items():
        of = ", ".join(f"`{kind}`" for kind in defaults)
        lines.append(f"| `{name}` | {_default(defaults)} | of {of}: {meaning} |\n")
    return "".join(lines)


def _meaning(field: msgspec.structs.FieldInfo) -> str:
    said = [mark.description for mark in get_args(field.type)[1:] if isinstance(mark, msgspec.Meta)]
    assert said and said[0], f"{field.name} has no description"
    return said[0]


def _default(defaults: Mapping[str, Any]) -> str:
    """The default of all kinds, or that of the first and of those that have another one."""
    shown = {kind: "required" if value is msgspec.NODEFAULT else json.dumps(value) for kind, value in defaults.items()}
    usual = next(iter(shown.values()))
    others = [f"{value} for `{kind}`" for kind, value in shown.items() if value != usual]
    return "; ".join([usual, *others])


TABLES: Final[Mapping[str, Callable[[], str]]] = {"concepts.md": kinds_table, "experiment_file.md": fields_table}


def text(page: str) -> str:
    """The page with its table as it should be."""
    before, _, rest = (DOCS / page).read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{page} has no place for a table"
    return f"{before}{BEGIN}{TABLES[page]()}{END}{after}"


if __name__ == "__main__":
    for each in TABLES:
        (DOCS / each).write_text(text(each))
