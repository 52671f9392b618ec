"""`text_of` is veRL's tables as an installed package has them: its defaults, and its own configurations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rftd.daemon.config.verl.table import FILE, find

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


def keys(package: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of the file, each with the installed release's default where that has one."""
    groups: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text())["keys"]
    tree = yaml.safe_load((package / "trainer" / "config" / f"{GENERATED}ppo_trainer.yaml").read_text())
    defaults = {name: value for name, value in leaves(tree) if not (isinstance(value, str) and "${" in value)}
    for row in (row for rows in groups.values() for row in rows):
        if row.get("default") is not None and defaults.get(row["name"], row["default"]) != row["default"]:
            row["default"] = defaults[row["name"]]
    return groups


def text_of(package: Path) -> str:
    release = ".".join((package / "version" / "version").read_text().split(".")[:2])
    groups = {group: _lines([json.dumps(row) for row in rows], "[]") for group, rows in keys(package).items()}
    named = {name: json.dumps(values, sort_keys=True) for name, values in sorted(configurations(package).items())}
    written = json.loads(FILE.read_text())
    parts = {
        "release": json.dumps(release),
        "spellings": _named({name: json.dumps(own) for name, own in written["spellings"].items()}),
        "groups": json.dumps(written["groups"]),
        "words": _named({name: json.dumps(words) for name, words in written["words"].items()}),
        "undecided": _lines([json.dumps(row) for row in written["undecided"]], "[]"),
        "keys": _named(groups),
        "configurations": _named(named),
    }
    return _named(parts) + "\n"


def _named(texts: dict[str, str]) -> str:
    return _lines([f"{json.dumps(name)}: {text}" for name, text in texts.items()], "{}")


def _lines(texts: list[str], brackets: str) -> str:
    return brackets[0] + "\n" + ",\n".join(texts) + "\n" + brackets[1]
