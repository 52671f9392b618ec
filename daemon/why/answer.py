"""Every role's wait, worst first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rftd.daemon.why.holds import deciders_waits
from rftd.daemon.why.life import experiment_wait, log_wait, untold
from rftd.daemon.why.scene import Phase, Scene
from rftd.daemon.why.wait import Wait
from rftd.daemon.why.workers import worker_waits
from rftd.workers.membership import explain

_Place = tuple[str, int | None, str | None]
"""A role, its slot and its worker."""


def waits_of(scene: Scene) -> list[Wait]:
    """The waits of a driven experiment's roles. Pure; the cost grows with the open groups."""
    waits: list[Wait] = []
    try:
        waits.extend(_waits(scene))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a third party's policy, where the deciders are asked only now, may raise anything
        waits.append(untold(explain(error)))
    return worst_first(waits)


def worst_first(waits: list[Wait]) -> list[Wait]:
    """The waits by level; within a level they keep their order, so that what belongs together stays together."""
    return sorted(waits, key=lambda wait: wait.level)


def _waits(scene: Scene) -> Iterator[Wait]:
    yield experiment_wait(scene)
    if (log := log_wait(scene)) is not None:
        yield log
    spine = scene.state.spine
    if spine.status is None or spine.status.ended:
        return
    # Before its fences are read back a daemon has no right to decide, so what its deciders would say means nothing
    # yet.
    if scene.phase is Phase.LEADING:
        yield from deciders_waits(scene)
    if scene.phase in (Phase.LEADING, Phase.DRAINING):
        yield from worker_waits(scene)


class Tracker:
    """Remembers since when each role of one experiment has been in its state; the run and each question feed it."""

    def __init__(self) -> None:
        self._since: dict[_Place, tuple[str, int]] = {}

    def dated(self, waits: Sequence[Wait], now_ns: int) -> list[Wait]:
        """The waits with `since_ns` filled in; one whose state changed begins anew, one that is gone is dropped."""
        places = [(wait, (wait.role, wait.slot, wait.worker)) for wait in waits]
        known = self._since
        self._since = {
            place: known[place] if known.get(place, ("", 0))[0] == wait.state else (wait.state, now_ns)
            for wait, place in places
        }
        return [
            # A wait that the log dates keeps that date: it holds over restarts of the daemon, this tracker's does
            # not.
            wait if wait.since_ns is not None else msgspec.structs.replace(wait, since_ns=self._since[place][1])
            for wait, place in places
        ]
