"""Changed priorities of experiences: which may be changed, and the event that says so."""

from __future__ import annotations

from itertools import chain

from rftd.ops.errors import ConflictError
from rftd.streams.events.batch import ExperiencePrioritized
from rftd.streams.folds.run_state import RunState


def check_tag(state: RunState, event: ExperiencePrioritized) -> None:
    """Raises ConflictError if no experience of the group waits, rests or is still being produced."""
    if event.group in state.groups.open:
        return
    entries = chain(state.ledger.waiting.values(), state.ledger.cooling.values())
    if any(entry.group.group == event.group for entry in entries):
        return
    raise ConflictError(
        f"no experience of group {event.group} waits to be trained (again)",
        fix="rftd experiences ls NAME --state waiting lists those that do",
    )
