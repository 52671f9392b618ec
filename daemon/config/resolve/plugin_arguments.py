"""Arguments of a reward against what it declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import WrongValue
from rftd.daemon.config.resolve.arguments import check_names
from rftd.daemon.config.resolve.notes import Notes
from rftd.ops.errors import ConfigError
from rftd.ops.plugins import Plugins


def check_declared(
    plugins: Plugins[Any], name: str | None, given: Mapping[str, Any], path: FieldPath, notes: Notes
) -> None:
    """Refuses names, types and values that one of ours does not take, and required arguments that are missing.

    A third party's module is not imported here: the daemon does that before it accepts.
    """
    if name is None or not plugins.builtin(name):
        return
    try:
        declaration = plugins.declaration(name)
    except ConfigError:  # without its extra, which is said elsewhere
        return
    if declaration is None:
        return
    taker = f"{plugins.kind} {name}"
    check_names(given, declaration.kind.__struct_fields__, path, taker, notes)
    for argument, why in declaration.wrong(given):
        fix = f"correct it, or leave it out for the {plugins.kind}'s own"
        if argument in declaration.required:
            fix = f"{taker} needs it"
        notes.wrong((*path, argument), why, fix, WrongValue)
