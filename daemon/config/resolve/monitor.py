"""`check_monitor` holds `monitor.monitor_args` against what the trackers take; `trackers_of` gives each its part."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Issue, Notes, WrongValue
from rftd.daemon.config.schema.experiment import Monitor
from rftd.ops.errors import ConfigError
from rftd.streams.spec.tracking import TrackerSpec
from rftd.workers.tracking.registry import TRACKERS

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
        "trackio": (),
        "jsonl": (),
        "console": (),
    }
)
"""The arguments of the monitors: of the guide's as it says, of swanlab those of its own that Trinity-RFT names."""
_SETTLED: Final = ("id", "resume", "reinit")
"""Arguments of swanlab that the tracker chooses by itself."""
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


def trackers_of(monitor: Monitor) -> tuple[TrackerSpec, ...]:
    """The trackers of an experiment, each with the arguments that it takes."""
    return tuple(_tracker(kind, monitor) for kind in _kinds(monitor))


def arguments_of(kind: str) -> tuple[str, ...]:
    """The names of the arguments that a tracker takes."""
    return _TAKEN[kind]


def check_monitor(monitor: Monitor) -> tuple[list[Issue], list[str]]:
    """The errors and the warnings of the section. A misspelt argument is an error."""
    notes = Notes()
    kinds = _kinds(monitor)
    for kind in kinds:
        _check_kind(kind, notes)
    if len(kinds) < len(monitor.also) + (monitor.monitor_type is not None):
        notes.wrong(("monitor", "also"), "names a tracker twice", "name each once", WrongValue)
    if monitor.single_run and not kinds:
        notes.warn("monitor.single_run has no effect: there is no monitor_type")
    if monitor.samples and not kinds:
        notes.warn("monitor.samples has no effect: there is no monitor_type")
    if monitor.sample_interval != 1 and not monitor.samples:
        notes.warn("monitor.sample_interval has no effect: monitor.samples is 0")
    arguments = monitor.monitor_args or {}
    acts = any(name in _TAKEN[kind] for name in arguments for kind in kinds)
    for name, value in arguments.items():
        takers = [kind for kind in kinds if name in _TAKEN[kind]]
        for kind in takers:
            _check_value(name, value, kind, notes)
        if not takers:
            _check_stranger(name, kinds, notes, acts=acts)
        elif name in _SETTLED and value is not None:
            why = "a run is named by its experiment, and gone on with"
            notes.warn(f"{show((*_ARGS, name))} has no effect: {why}")
    return notes.issues, notes.warnings


def _kinds(monitor: Monitor) -> tuple[str, ...]:
    first = () if monitor.monitor_type is None else (monitor.monitor_type,)
    return tuple(dict.fromkeys((*first, *monitor.also)))


def _tracker(kind: str, monitor: Monitor) -> TrackerSpec:
    arguments = {name: value for name, value in (monitor.monitor_args or {}).items() if _is_taken(name, kind)}
    variables = {name: value["env"] for name, value in arguments.items() if _is_variable(value)}
    return TrackerSpec(
        kind=kind,
        args={name: value for name, value in arguments.items() if name not in variables and value is not None},
        variables=variables,
        single_run=monitor.single_run,
        samples=monitor.samples,
        sample_interval=monitor.sample_interval,
    )


def _is_taken(name: str, kind: str) -> bool:
    """True if the tracker receives the argument; SwanLab receives unchecked ones as well."""
    strange = kind == "swanlab" and not any(name in names for names in _TAKEN.values())
    return name in _TAKEN[kind] or strange


def _is_variable(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"env"} and isinstance(value["env"], str)


def _check_kind(kind: str, notes: Notes) -> None:
    where = "monitor.monitor_type"
    try:
        TRACKERS.check(kind)
    except ConfigError as error:
        notes.warn(f"{where}: {error.what}; {error.fix}. What is missed until then follows")


def _check_stranger(name: str, kinds: tuple[str, ...], notes: Notes, *, acts: bool) -> None:
    """Notes an argument that none of the trackers declares; `acts` tells whether another one is of use."""
    if owners := [kind for kind, names in _TAKEN.items() if name in names]:
        whose = f"not for {', '.join(kinds)}" if kinds else "and there is no monitor_type"
        if acts:
            notes.warn(f"{show((*_ARGS, name))} has no effect: it is for {owners[0]}, {whose}")
        else:
            notes.warn(f"{show(_ARGS)} has no effect: {name} is for {owners[0]}, {whose}")
        return
    taken = [argument for kind in kinds for argument in _TAKEN[kind]]
    if "swanlab" in kinds and not difflib.get_close_matches(name, taken, 1):
        notes.warn(f"{show((*_ARGS, name))} is not checked: it is handed to swanlab as it is")
        return
    what = f"is no argument of {', '.join(kinds)}" if taken else "is no argument of any tracker"
    notes.unknown((*_ARGS, name), what, taken or [argument for names in _TAKEN.values() for argument in names])


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
    if value is not None and not isinstance(value, str) and not _is_variable(value):
        kind = "mapping" if isinstance(value, dict) else "list" if isinstance(value, list) else "number or boolean"
        # The value is not repeated: it may be a key that was written without quotes.
        notes.wrong((*_ARGS, name), f"is a {kind}, and {monitor} takes text", "write text, or {env: NAME}", WrongValue)
