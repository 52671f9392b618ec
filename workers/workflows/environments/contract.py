"""The contract of an environment's server: five calls over HTTP, each a POST with a JSON object, answered by one.

    /tasks {first, count}        -> {rows}         rows of the dataset from `first` on; none at the end
    /reset {session, row, seed}  -> {observation}  begins an episode of a row; the observation repeats the row's prompt
    /step  {session, action}     -> {observation, done}
    /score {session}             -> {reward, parts}
    /close {session}             -> {}

A row has a `prompt` and a `response` (empty without an answer). The calls of a session arrive on one connection, in
order; a connection closed without /close ends the session as well. A failed call has a status of 400 or more, and an
`error` in the object.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

SOCKET_VARIABLE: Final = "RFTD_ENVIRONMENT_SOCKET"
"""Variable of the command: path of the Unix socket to listen on."""
STEP_VARIABLE: Final = "RFTD_ENVIRONMENT_STEP_S"
"""Variable of the command: seconds after which nobody waits for the answer to a call."""
SOCKET: Final = "environment.sock"
"""Name of the socket in the command's folder."""


class TaskPage(msgspec.Struct, frozen=True):
    """Rows of the dataset, in order."""

    rows: list[dict[str, Any]]
    """Rows of the dataset as objects; none behind the dataset's end."""


class BegunEpisode(msgspec.Struct, frozen=True):
    """The first observation of an episode."""

    observation: str
    """First observation of the episode, as text for the model."""


class TakenStep(msgspec.Struct, frozen=True):
    """The observation after an action; `done` ends the episode."""

    done: bool
    """True at the episode's end."""
    observation: str = ""
    """Observation after the action, as text for the model."""


class EpisodeScore(msgspec.Struct, frozen=True):
    """The reward of an episode, with the figures behind it by name."""

    reward: float
    """Reward of the episode until now."""
    parts: dict[str, float] = {}
    """Figures behind the reward, by name."""


class ClosedSession(msgspec.Struct, frozen=True):
    """The answer to the last call of a session."""


class CallFailure(msgspec.Struct, frozen=True):
    """The answer to a failed call."""

    error: str = ""
    """What failed."""
