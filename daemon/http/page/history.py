"""`grouped`: events of a run by subject: a task, a step, an evaluation, a worker, or a window of the run's life."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from rftd.daemon.http.views.event_page import EventView

Level = Literal["done", "warn", "bad"]
"""Severity of an event: `done` for regular progress, `warn` or `bad`."""
Form = Literal["grouped", "all", "json"]
"""Form of the list of events: by subject, one by one, or as JSON."""
_WARNS: Final = frozenset(
    """batch.abandoned experience.given_up experience.retired experiment.paused experiment.warned generation.started
    rollout.failed signal.lost stage.stopped task.expired weights.overdue""".split()  # noqa: SIM905
)
"""Types of events shown as warnings."""
_BROKEN: Final = frozenset(("experiment.failed", "experiment.rejected", "record.dead_lettered", "worker.lost"))
"""Types of events shown as failures."""
_STEP_EVENT_PREFIXES: Final = ("batch.", "step.", "checkpoint.", "weights.", "signal.")
"""Beginnings of the types of events about a step or a weight version."""
_SHOWN_FIGURES: Final = 6
"""Maximum number of figures in the line of an event."""
_ID_CHARACTERS: Final = 36
"""Length of an id in its usual form with four hyphens."""
_SHOWN_CHARACTERS: Final = 160
"""Maximum number of characters of one figure in a line."""
_FIRST: Final = ("code", "reason")
"""Names of fields shown before all others."""
_NUMBERS: Final = ("step", "version", "held_version", "stage", "epoch", "slot")
"""Figures of a payload shown even if 0."""


class EventLine(NamedTuple):
    """An event with a line of its figures, and all of it as indented JSON."""

    event: EventView
    """The event."""
    words: str
    """Line of the event's figures."""
    json: str
    """The whole event as indented JSON."""
    level: Level
    """Severity of the event's type."""


class EventGroup(NamedTuple):
    """The events of one subject, oldest first."""

    title: str
    """Name of the subject."""
    text: str
    """Counts of the types of events."""
    lines: list[EventLine]
    """Events of the subject."""
    level: Level
    """Highest severity among the events."""
    lineage: str | None
    """The name by which the lineage finds the subject."""


class _Subject(NamedTuple):
    """Subject of an event: a group, evaluation, step, worker, or the run."""

    key: tuple[str, Any]
    """Kind and id of the subject, equal for all events of the subject."""
    title: str
    """Name of the subject on the page."""
    lineage: str | None
    """Name of the subject in the lineage; None for a subject without lineage."""


def grouped(events: Sequence[EventView], run: str) -> list[EventGroup]:
    """Returns the events by subject, the subject with the newest event first; `run` is the id of their run."""
    groups: dict[tuple[str, Any], list[EventView]] = {}
    subjects: dict[tuple[str, Any], _Subject] = {}
    leases: dict[str, _Subject] = {}
    newest: dict[tuple[str, Any], int] = {}
    for number, event in enumerate(events):
        subject = _subject_of(event, run, leases)
        if (lease := event.payload.get("lease")) is not None:
            leases.setdefault(str(lease), subject)
        former = subjects.get(subject.key)
        # Only some events of a task have its number.
        if former is None or (former.title.startswith("Group") and subject.title.startswith("Task")):
            subjects[subject.key] = subject
        groups.setdefault(subject.key, []).append(event)
        newest[subject.key] = number
    return [_group(subjects[key], groups[key]) for key in sorted(groups, key=newest.__getitem__, reverse=True)]


def lines_of(events: Iterable[EventView]) -> list[EventLine]:
    """Returns the events as lines, in their order."""
    return [
        EventLine(event, words_of(event.payload), json_of(msgspec.to_builtins(event)), _level(event.type))
        for event in events
    ]


def json_of(content: Any) -> str:
    """Returns a content as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode()


def words_of(payload: Mapping[str, Any]) -> str:
    """Returns the first figures and texts of a payload; ids, lists and empty fields are left out."""
    names = [*(name for name in _FIRST if name in payload), *(name for name in payload if name not in _FIRST)]
    shown = [f"{name} {_short(payload[name])}" for name in names if _is_shown(name, payload[name])]
    return ", ".join(shown[:_SHOWN_FIGURES])


def _is_shown(name: str, content: Any) -> bool:
    """True if a field belongs in an event's line: no id, absolute path, empty text or False, and zeros only by name."""
    if isinstance(content, str):
        return bool(content) and not _is_id(content) and not content.startswith("/")
    if isinstance(content, bool):
        return content
    if isinstance(content, int | float):
        return content != 0 or name in _NUMBERS
    return False


def _is_id(text: str) -> bool:
    """True for a text in the form of an id: 36 characters with four hyphens."""
    return len(text) == _ID_CHARACTERS and text.count("-") == 4


def _short(content: Any) -> str:
    """Returns a field as text: numbers with 4 digits, long texts cut after `_SHOWN_CHARACTERS` with an ellipsis."""
    text = f"{content:.4g}" if isinstance(content, float) else str(content)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _subject_of(event: EventView, run: str, leases: Mapping[str, _Subject]) -> _Subject:
    """Returns the subject of an event, found by group, evaluation, step, lease or worker, else the run."""
    payload = event.payload
    group = payload.get("group")
    if isinstance(group, str):
        if "sequence" in payload:
            title = f"Task {int(payload['sequence']):,} of stage {payload.get('stage', 1)}"
            return _Subject(("group", group), title, group)
        return _Subject(("group", group), f"Group {group[:8]}", group)
    if isinstance(payload.get("eval"), str):
        title = f"Evaluation at version {payload.get('version')}"
        return _Subject(("eval", payload["eval"]), title, payload["eval"])
    step = payload.get("step", payload.get("version"))
    if event.type.startswith(_STEP_EVENT_PREFIXES) and isinstance(step, int):
        lineage = f"{run}/weights/{step}" if event.type.startswith("weights.") else f"{run}/step/{step}"
        return _Subject(("step", step), f"Step {step:,}" if step else "Base weights", lineage if step else None)
    if (subject := leases.get(str(payload.get("lease")))) is not None:
        return subject
    if isinstance(payload.get("worker"), str):
        return _Subject(("worker", payload["worker"]), f"Worker {_worker(payload)}", None)
    if event.type == "experience.retired":
        return _Subject(("window", "retired"), "Dropped rollouts", None)
    return _Subject(("window", "run"), "Life of the run", None)


def _worker(payload: Mapping[str, Any]) -> str:
    """Returns role and slot of the worker in an event, or the first digits of the worker's id without a role."""
    if "role" not in payload:
        return str(payload["worker"])[:8]
    slot = payload.get("slot")
    numbered = isinstance(slot, int) and slot >= 0  # a trainer has none
    return f"{payload['role']} {slot}" if numbered else str(payload["role"])


def _level(name: str) -> Level:
    """Returns the severity of a type of event."""
    return "bad" if name in _BROKEN else "warn" if name in _WARNS else "done"


def _group(subject: _Subject, events: list[EventView]) -> EventGroup:
    """Returns the group of a subject's events, with counts by type and the highest severity."""
    counts = Counter(event.type for event in events)
    text = ", ".join(name if number == 1 else f"{number} × {name}" for name, number in counts.items())
    levels = {_level(event.type) for event in events}
    level: Level = "bad" if "bad" in levels else "warn" if "warn" in levels else "done"
    return EventGroup(subject.title, text, lines_of(events), level, subject.lineage)
