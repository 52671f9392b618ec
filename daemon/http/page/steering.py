"""`Steering`: the commands to an experiment on offer on its page, and the reason if the reader may give none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple
from uuid import UUID

from rftd.daemon.http.views.annotations import Annotate, annotate
from rftd.daemon.http.views.route import Daemon
from rftd.daemon.run.consequence import Rehearsed
from rftd.daemon.run.supervisor.inbox import LEGAL
from rftd.daemon.trust.asker import AccessRole, NotAllowedError
from rftd.streams.events import experiment as life
from rftd.streams.events.registry import Event
from rftd.streams.folds.spine import Status

_EVENTS: Final[dict[str, type[Event]]] = {
    "pause": life.ExperimentPaused,
    "resume": life.ExperimentResumed,
    "cancel": life.ExperimentCancelled,
    "prioritize": life.ExperimentPrioritized,
}
"""Events of the commands bound to a state; forks and notes are possible in every state."""
_TITLES: Final = {
    "pause": "Pause",
    "resume": "Resume",
    "cancel": "Cancel",
    "prioritize": "Prioritize",
    "fork": "Fork",
    "note": "Note",
    "labels": "Labels",
}
"""Title of the button for each command."""


class Steering(NamedTuple):
    """Commands to an experiment by name, each with its title, and the refusal of the reader."""

    acts: dict[str, str]
    """Title of each command open to the experiment, by name."""
    refusal: str | None
    """The reason and the remedy for a reader without the right to give commands; None with the right."""


def acts_of(state: str) -> dict[str, str]:
    """Returns the commands legal in a state of an experiment, with their titles."""
    status = Status(state)
    return {act: title for act, title in _TITLES.items() if act not in _EVENTS or status in LEGAL[_EVENTS[act]]}


def refusal_of(daemon: Daemon, needed: AccessRole = AccessRole.SUBMIT) -> str | None:
    """Returns the reason why the reader may give no command for the role `needed`; None for a sufficient role."""
    try:
        daemon.asker.check_role(needed)
    except NotAllowedError as error:
        return f"{error.what}: {error.fix}"
    return None


async def steering_of(daemon: Daemon, rehearsing: Callable[[], Daemon], experiment: UUID, state: str) -> Steering:
    """Returns the commands to an experiment; `rehearsing` opens a view of the daemon without appends."""
    refusal = refusal_of(daemon)
    if refusal is None and daemon.asker.role < AccessRole.ADMIN:
        try:
            await annotate.work(rehearsing(), Annotate(star=True), UUID(int=0), name=str(experiment))
        except NotAllowedError as error:
            refusal = f"{error.what}: {error.fix}"
        except Rehearsed:
            pass
    return Steering(acts_of(state), refusal)
