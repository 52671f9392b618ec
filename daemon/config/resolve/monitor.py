"""`check_monitor` checks `monitor.monitor_args` against the trackers' arguments; `trackers_of` assigns arguments."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Issue, Notes, WrongValue
from rftd.daemon.config.schema.experiment import Monitor
from rftd.ops.errors import ConfigError
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.tracking.addresses import ADDRESSES, address_fault
from rftd.workers.tracking.registry import TRACKERS

_ARGS: Final[FieldPath] = ("monitor", "monitor_args")
"""Field of the trackers' arguments."""
_SWANLAB: Final = (
    *("api_key", "workspace", "mode", "logdir", "experiment_name", "description", "tags", "settings", "id"),
    *("resume", "reinit"),
)
"""Arguments of SwanLab."""
_ARGUMENTS_BY_TRACKER: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
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
"""The arguments of each tracker: the guide's, and SwanLab's arguments named by Trinity-RFT."""
_SETTLED: Final = ("id", "resume", "reinit")
"""Arguments of SwanLab set by rftd itself, and not accepted in the file."""
_TYPES_BY_ARGUMENT: Final[Mapping[str, tuple[str, tuple[type, ...]]]] = MappingProxyType(
    {
        "tags": ("a list of texts", (list, tuple)),
        "settings": ("a mapping", (dict,)),
        "resume": ("text, true or false", (str, bool)),
        "reinit": ("true or false", (bool,)),
    }
)
"""Types of arguments other than text or `{env: NAME}`."""
_WORDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"mode": ("cloud", "local", "offline", "disabled"), "resume": ("must", "allow", "never")}
)
"""Values accepted by SwanLab, by argument."""


def trackers_of(monitor: Monitor) -> tuple[TrackerSpec, ...]:
    """Returns the trackers of an experiment, each with its arguments."""
    return tuple(_tracker(kind, monitor) for kind in _kinds(monitor))


def arguments_of(kind: str) -> tuple[str, ...]:
    """Returns the names of the arguments of a tracker, for example `base_url` and `api_key` for wandb."""
    return _ARGUMENTS_BY_TRACKER[kind]


def check_monitor(monitor: Monitor) -> tuple[list[Issue], list[str]]:
    """Returns the issues and warnings of section `monitor`; a misspelt argument is an issue."""
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
    acts = any(name in _ARGUMENTS_BY_TRACKER[kind] for name in arguments for kind in kinds)
    for name, argument in arguments.items():
        takers = [kind for kind in kinds if name in _ARGUMENTS_BY_TRACKER[kind]]
        for kind in takers:
            _check_value(name, argument, kind, notes)
        if not takers:
            _check_undeclared(name, kinds, notes, acts=acts)
        elif name in _SETTLED and argument is not None:
            why = "the run is named after the experiment and resumed automatically"
            notes.warn(f"{show((*_ARGS, name))} has no effect: {why}")
    return notes.issues, notes.warnings


def _kinds(monitor: Monitor) -> tuple[str, ...]:
    """Returns the names of the trackers, without duplicates."""
    first = () if monitor.monitor_type is None else (monitor.monitor_type,)
    return tuple(dict.fromkeys((*first, *monitor.also)))


def _tracker(kind: str, monitor: Monitor) -> TrackerSpec:
    """Returns one tracker with the arguments meant for it."""
    arguments = {name: argument for name, argument in (monitor.monitor_args or {}).items() if _is_taken(name, kind)}
    variables = {name: argument["env"] for name, argument in arguments.items() if _is_variable(argument)}
    return TrackerSpec(
        kind=kind,
        args={name: argument for name, argument in arguments.items() if name not in variables and argument is not None},
        variables=variables,
        single_run=monitor.single_run,
        samples=monitor.samples,
        sample_interval=monitor.sample_interval,
    )


def _is_taken(name: str, kind: str) -> bool:
    """True if the tracker receives the argument; SwanLab also receives unknown arguments unchecked."""
    strange = kind == "swanlab" and not any(name in names for names in _ARGUMENTS_BY_TRACKER.values())
    return name in _ARGUMENTS_BY_TRACKER[kind] or strange


def _is_variable(reference: Any) -> bool:
    """True for `{env: NAME}`."""
    return isinstance(reference, dict) and set(reference) == {"env"} and isinstance(reference["env"], str)


def _check_kind(kind: str, notes: Notes) -> None:
    """Warns if a tracker's package is not installed."""
    where = "monitor.monitor_type"
    try:
        TRACKERS.check(kind)
    except ConfigError as error:
        notes.warn(f"{where}: {error.what}; {error.fix}. Figures missed until then are sent later")


def _check_undeclared(name: str, kinds: tuple[str, ...], notes: Notes, *, acts: bool) -> None:
    """Adds an issue or warning for an argument declared by no tracker in use; `acts`: other arguments are used."""
    if owners := [kind for kind, names in _ARGUMENTS_BY_TRACKER.items() if name in names]:
        whose = f"not for {', '.join(kinds)}" if kinds else "and there is no monitor_type"
        if acts:
            notes.warn(f"{show((*_ARGS, name))} has no effect: it is for {owners[0]}, {whose}")
        else:
            notes.warn(f"{show(_ARGS)} has no effect: {name} is for {owners[0]}, {whose}")
        return
    accepted = [argument for kind in kinds for argument in _ARGUMENTS_BY_TRACKER[kind]]
    if "swanlab" in kinds and not difflib.get_close_matches(name, accepted, 1):
        notes.warn(f"{show((*_ARGS, name))} is not checked: it is passed to swanlab unchanged")
        return
    problem = f"is not an argument of {', '.join(kinds)}" if accepted else "is not an argument of any tracker"
    notes.unknown(
        (*_ARGS, name),
        problem,
        accepted or [argument for names in _ARGUMENTS_BY_TRACKER.values() for argument in names],
    )


def _check_value(name: str, argument: Any, monitor: str, notes: Notes) -> None:
    """Adds an issue for a value of the wrong type, or for a word unknown to the tracker."""
    expected, types = _TYPES_BY_ARGUMENT.get(name, ("text", (str,)))
    if name not in _TYPES_BY_ARGUMENT:
        _check_text(name, argument, monitor, notes)
    elif argument is not None and (
        not isinstance(argument, types)
        or (isinstance(argument, list) and not all(isinstance(tag, str) for tag in argument))
    ):
        notes.wrong((*_ARGS, name), f"has the wrong type for {monitor}", f"write {expected}", WrongValue)
    if isinstance(argument, str) and argument and name == ADDRESSES.get(monitor, ("",))[0]:
        _check_address(name, argument, monitor, notes)
    if isinstance(argument, str) and name in _WORDS and argument not in _WORDS[name]:
        notes.wrong((*_ARGS, name), f"is {argument!r}", f"write one of {', '.join(_WORDS[name])}", WrongValue)


def _check_address(name: str, address: str, monitor: str, notes: Notes) -> None:
    """Refuses an address unfit for the tracker."""
    if (fault := address_fault(monitor, address)) is not None:
        notes.wrong((*_ARGS, name), fault.problem, fault.fix, WrongValue)


def _check_text(name: str, argument: Any, monitor: str, notes: Notes) -> None:
    """Refuses an argument other than text or `{env: NAME}`."""
    if argument is not None and not isinstance(argument, str) and not _is_variable(argument):
        kind = (
            "mapping" if isinstance(argument, dict) else "list" if isinstance(argument, list) else "number or boolean"
        )
        # The value is not repeated: it may be a key written without quotes.
        notes.wrong((*_ARGS, name), f"is a {kind}, and {monitor} takes text", "write text, or {env: NAME}", WrongValue)
