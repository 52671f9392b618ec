"""`check_monitor` holds `monitor.monitor_args` against what the guide's monitors take, although none is fed here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Issue, Notes, WrongValue
from rftd.daemon.config.schema.experiment import Monitor

_ARGS: Final[FieldPath] = ("monitor", "monitor_args")
_SWANLAB: Final = (
    *("api_key", "workspace", "mode", "logdir", "experiment_name", "description", "tags", "settings", "id"),
    *("resume", "reinit"),
)
_TAKEN: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "wandb": ("base_url", "api_key"),
        "mlflow": ("uri", "username", "password"),
        "tensorboard": (),
        "swanlab": _SWANLAB,
    }
)
"""The arguments of the monitors: of the guide's as it says, of swanlab those of its own that Trinity-RFT names."""
_OTHERS: Final[Mapping[str, tuple[str, tuple[type, ...]]]] = MappingProxyType(
    {
        "tags": ("a list of texts", (list, tuple)),
        "settings": ("a mapping", (dict,)),
        "resume": ("text, true or false", (str, bool)),
        "reinit": ("true or false", (bool,)),
    }
)
"""The types of those that are not a text or `{env: NAME}`."""
_WORDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"mode": ("cloud", "local", "offline", "disabled"), "resume": ("must", "allow", "never")}
)
"""The words that swanlab knows."""


def check_monitor(given: Monitor) -> tuple[list[Issue], list[str]]:
    """The errors and the warnings of the arguments.

    A misspelt name is an error, although no argument has an effect: the file is meant for a run elsewhere, too.
    """
    notes = Notes()
    taken = _TAKEN[given.monitor_type]
    for name, value in (given.monitor_args or {}).items():
        if name in taken:
            _check_value(name, value, given.monitor_type, notes)
        elif of := [monitor for monitor, names in _TAKEN.items() if name in names]:
            notes.warn(f"{show((*_ARGS, name))} has no effect: it is for {of[0]}, not for {given.monitor_type}")
        elif taken is _SWANLAB and not difflib.get_close_matches(name, taken, 1):
            notes.warn(f"{show((*_ARGS, name))} is not checked: it would be handed to swanlab as it is")
        else:
            known = taken or [each for names in _TAKEN.values() for each in names]
            what = f"is no argument of {given.monitor_type}"
            notes.unknown((*_ARGS, name), what if taken else f"{what}, nor of another monitor of the guide", known)
    return notes.issues, notes.warnings


def _check_value(name: str, value: Any, monitor: str, notes: Notes) -> None:
    """Notes a value of another type, or a word that the monitor does not know."""
    wanted, types = _OTHERS.get(name, ("text", (str,)))
    if name not in _OTHERS:
        _check_text(name, value, monitor, notes)
    elif value is not None and (
        not isinstance(value, types) or (isinstance(value, list) and not all(isinstance(tag, str) for tag in value))
    ):
        notes.wrong((*_ARGS, name), f"is not what {monitor} takes", f"write {wanted}", WrongValue)
    if isinstance(value, str) and name in _WORDS and value not in _WORDS[name]:
        notes.wrong((*_ARGS, name), f"is {value!r}", f"write one of {', '.join(_WORDS[name])}", WrongValue)


def _check_text(name: str, value: Any, monitor: str, notes: Notes) -> None:
    variable = isinstance(value, dict) and set(value) == {"env"} and isinstance(value["env"], str)
    if value is not None and not isinstance(value, str) and not variable:
        kind = "mapping" if isinstance(value, dict) else "list" if isinstance(value, list) else "number or boolean"
        # The value is not repeated: it may be a key that was written without quotes.
        notes.wrong((*_ARGS, name), f"is a {kind}, and {monitor} takes text", "write text, or {env: NAME}", WrongValue)
