"""`check_monitor` holds `monitor.monitor_args` against what the guide's monitors take, although none is fed here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Issue, Notes, WrongValue
from rftd.daemon.config.schema.experiment import Monitor

_ARGS: Final[FieldPath] = ("monitor", "monitor_args")
_TAKEN: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"wandb": ("base_url", "api_key"), "mlflow": ("uri", "username", "password"), "tensorboard": ()}
)
"""The arguments of the guide's monitors, each a text or `{env: NAME}`; it says nothing of any other's."""


def check_monitor(given: Monitor) -> tuple[list[Issue], list[str]]:
    """The errors and the warnings of the arguments.

    A misspelt name is an error, although no argument has an effect: the file is meant for a run elsewhere, too.
    """
    notes = Notes()
    taken = _TAKEN.get(given.monitor_type)
    for name, value in (given.monitor_args or {}).items():
        if taken is None:
            notes.warn(f"{show((*_ARGS, name))} is not checked: the guide names no arguments of {given.monitor_type}")
        elif name in taken:
            _check_text(name, value, given.monitor_type, notes)
        elif of := [monitor for monitor, names in _TAKEN.items() if name in names]:
            notes.warn(f"{show((*_ARGS, name))} has no effect: it is for {of[0]}, not for {given.monitor_type}")
        else:
            known = taken or [each for names in _TAKEN.values() for each in names]
            what = f"is no argument of {given.monitor_type}"
            notes.unknown((*_ARGS, name), what if taken else f"{what}, nor of another monitor of the guide", known)
    return notes.issues, notes.warnings


def _check_text(name: str, value: Any, monitor: str, notes: Notes) -> None:
    variable = isinstance(value, dict) and set(value) == {"env"} and isinstance(value["env"], str)
    if value is not None and not isinstance(value, str) and not variable:
        kind = "mapping" if isinstance(value, dict) else "list" if isinstance(value, list) else "number or boolean"
        # The value is not repeated: it may be a key that was written without quotes.
        notes.wrong((*_ARGS, name), f"is a {kind}, and {monitor} takes text", "write text, or {env: NAME}", WrongValue)
