"""Since when: the first time that each role was seen in the state it is in."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rftd.daemon.why.wait import Wait

_Place = tuple[str, int | None, str | None]


class Tracker:
    """Remembers states of one experiment's roles. Fed by the run, now and then and at each question."""

    def __init__(self) -> None:
        self._since: dict[_Place, tuple[str, int]] = {}

    def dated(self, waits: Sequence[Wait], now_ns: int) -> list[Wait]:
        """The same with `since_ns`; a role whose state changed begins anew, one that is gone is forgotten."""
        places = [(wait, (wait.role, wait.slot, wait.worker)) for wait in waits]
        known = self._since
        self._since = {
            place: known[place] if known.get(place, ("", 0))[0] == wait.state else (wait.state, now_ns)
            for wait, place in places
        }
        return [
            wait if wait.since_ns is not None else msgspec.structs.replace(wait, since_ns=self._since[place][1])
            for wait, place in places
        ]
