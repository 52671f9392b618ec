"""`recomputed`: a request for the terms of an objective at each token, and the wait for the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rftd.daemon.http.views import tokens as token_views
from rftd.daemon.run.recomputation import Recomputation
from rftd.ops.errors import ConflictError

if TYPE_CHECKING:
    from rftd.daemon.http.client.connection import DaemonConnection

_FIRST_PAUSE_S = 0.2
"""Seconds before the second read of a recomputation's state; later pauses grow."""
_LONGEST_PAUSE_S = 2.0
"""Maximum seconds between two reads of a recomputation's state."""


async def recomputed(
    connection: DaemonConnection, name: str, experience: str, *, show: Callable[[str], None] | None
) -> Recomputation:
    """Requests the terms of an experience's step and returns the finished recomputation; `show` receives each new
    sentence.

    Raises ConflictError for a failed recomputation, with the reason, or one forgotten by a restarted daemon, and the
    errors of the command.
    """
    body = token_views.Recompute()
    state = (await connection.send(token_views.recompute, body, name=name, experience=experience)).value
    pause_s = _FIRST_PAUSE_S
    sentence = ""
    while state.state in ("queued", "running"):
        if show is not None and state.sentence != sentence:
            sentence = state.sentence
            show(f"step {state.step}: {sentence}")
        await connection.pause(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
        window = (await connection.ask(token_views.tokens, name=name, experience=experience, n=1)).value
        if window.recomputation is None:
            raise ConflictError(
                f"the daemon forgot the request for step {state.step}: it was restarted", fix="ask it again"
            )
        state = window.recomputation
    if state.state == "failed":
        raise ConflictError(f"step {state.step} cannot be recomputed: {state.sentence}", fix="see the reason")
    return state
