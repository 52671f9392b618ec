"""The page of every field says what each one does, and where the guide or Trinity-RFT has something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from synthetic.daemon.config_fields import schema_fields

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.json_schema import json_schema, upstream_of

ROOT: Final = Path(__file__).parents[4]
DEFAULTS: Final = yaml.safe_load((ROOT / "tests" / "golden" / "config" / "upstream_defaults.yaml").read_text())
MEANING: Final = 6


def rows() -> Iterator[tuple[str, list[str]]]:
    """Every row of the page, with the section that it is in."""
    section = ""
    for line in (ROOT / "docs" / "configuration.md").read_text().splitlines():
        if line.startswith("## "):
            section = line
        elif line.startswith("| `"):
            yield section, [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]


def test_every_field_says_what_it_does() -> None:
    found = list(rows())
    assert len(found) > 300
    assert [(section, cells[1]) for section, cells in found if "acts" in cells[5] and not cells[MEANING]] == []


def leaves(tree: Any, path: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    """The fields of a tree of defaults; an item of a list of sections stands for all."""
    if isinstance(tree, dict) and tree and path[-1:] != ("priority_fn_args",):
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    elif isinstance(tree, list) and tree and isinstance(tree[0], dict):
        yield from leaves(tree[0], (*path, 0))
    else:
        yield path, tree


def test_another_default_is_told_beside_the_field() -> None:
    fields = {field.path: field for field in schema_fields()}
    untold: list[str] = []
    for path, there in [*leaves(DEFAULTS["trinity"]), *leaves(DEFAULTS["guide"])]:
        field = fields[path]
        here = field.info.get_default(call_default_factory=True)
        # No text and no arguments are nothing, however they are written.
        same = here == there or (here in (None, "", {}, []) and there in (None, "", {}, []))
        if not same and not upstream_of(field.info):
            untold.append(f"{show(path)}: {there!r} there, {here!r} here")
    assert untold == []


def test_the_schema_tells_it_to_editors() -> None:
    shown = json_schema()["$defs"]["Model"]["properties"]["min_response_tokens"]["description"]
    assert shown == ("Minimum number of tokens of a response. In tokens. Upstream: The guide's default is 1.")
