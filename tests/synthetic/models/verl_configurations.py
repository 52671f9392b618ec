"""`text_of` computes what veRL's own configurations give beyond `ppo_trainer`, from an installed package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rftd.daemon.config.verl.table import find

GENERATED = "_generated_"


def leaves(node: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if key in ("defaults", "hydra") or key.startswith("_"):
            continue
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{above}{key}.")
        elif value not in (None, {}, "???"):
            yield above + key, value


def differs(name: str, value: Any) -> bool:
    """True if the table of keys would say something else of a key that has an effect."""
    row = find(name)
    if row is None or row.fate in ("dropped", "person") or (isinstance(value, str) and "${" in value):
        return False
    return bool(row.name == name and value != row.default)


def configurations(package: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for file in sorted((package / "trainer" / "config").glob(f"{GENERATED}*.yaml")):
        tree = yaml.safe_load(file.read_text())
        values = {name: value for name, value in leaves(tree) if differs(name, value)}
        found[file.stem.removeprefix(GENERATED)] = values
    # `ppo_trainer` is what the table itself says.
    found["ppo_trainer"] = {}
    for file in sorted((package / "experimental").glob("*/config/*.yaml")):
        tree = yaml.safe_load(file.read_text())
        base = next(name for name in tree["defaults"] if isinstance(name, str) and name in found)
        found[file.stem] = found[base] | {name: value for name, value in leaves(tree) if differs(name, value)}
    return found


def text_of(package: Path) -> str:
    return json.dumps(configurations(package), indent=1, sort_keys=True) + "\n"
