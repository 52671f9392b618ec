"""A turn costs the same whoever left, and whatever was published and evaluated before: nobody looks at all of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from uuid import UUID

import pytest
from synthetic.worlds.desk import Desk, stage_of

from rftd.daemon.run.supervisor.fleet import Fleet
from rftd.ops.clock import ManualClock
from rftd.ops.ids import SystemIds, derive
from rftd.ops.logs import logger
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.folds.evaluations import due_evals, eval_id
from rftd.streams.folds.roster import Gone
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.control.controller import Controller
from rftd.workers.control.dispatcher import Dispatcher
from rftd.workers.control.liveness import Liveness
from rftd.workers.devices.host import ANY_HOST, Host
from rftd.workers.hosts.executor import Handle, WorkerOrder


class Unscanned(dict[UUID, Gone]):
    """May be asked for one entry and for how many there are."""

    def _all(self) -> NoReturn:
        raise AssertionError("somebody looks at every worker that ever left")

    __iter__ = keys = values = items = __reversed__ = _all  # type: ignore[assignment]


class Ended:
    """A process that has ended."""

    pid = 7
    waits = None
    reason = ""

    def exit_code(self) -> int | None:
        return 1

    def terminate(self) -> None: ...

    kill = terminate


class Ending:
    """Starts processes that end at once."""

    def start(self, order: WorkerOrder) -> Handle:
        return Ended()  # type: ignore[return-value]

    def host(self) -> Host:
        return ANY_HOST

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        return None

    def lives(self, started: WorkerStarted) -> bool:
        return True

    def clear(self, order: WorkerOrder) -> Handle | None:
        return None


@pytest.mark.anyio
async def test_nobody_looks_at_all_who_left(tmp_path: Path) -> None:
    desk, clock = Desk(stage_of()), ManualClock()
    worker = desk.join()
    state, roster = desk.state, desk.state.roster
    for number in range(100):
        roster._record_departure(
            derive(worker, "gone", number), Gone(role="explorer", slot=number % 3, code="X", reason="r")
        )
    roster.gone = Unscanned(roster.gone)
    liveness = Liveness()
    assert state.spine.spec is not None
    fleet = Fleet(state, Ending(), liveness, clock=clock, ids=SystemIds(clock), log=logger())
    fleet.take_up(state.spine.spec)
    controller, dispatcher = Controller(state), Dispatcher(state, liveness)
    for _ in range(3):
        controller.decide(None)
        dispatcher.decide(clock.monotonic_s())
        fleet.tend()
        clock.advance(10.0)


def test_evaluations_that_are_completed_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(stage_of(total_steps=10_000, eval_interval=20, evals=(TasksetSpec(name="held", path="none", rows=4),)))
    state, asked = desk.state, list[int]()
    stage = state.spine.stage_spec()

    def counting(experiment: UUID, number: int, version: int, taskset: int) -> UUID:
        asked.append(version)
        return eval_id(experiment, number, version, taskset)

    monkeypatch.setattr("rftd.streams.folds.evaluations.eval_id", counting)
    state.spine.furthest = 500

    def due() -> Iterator[tuple[int, int]]:
        asked.clear()
        return due_evals(state, stage)

    found = list(due())
    assert len(found) == len(asked) > 5
    state.spine.evaluated |= {eval_id(desk.id, 0, version, taskset) for version, taskset in found[:-2]}
    assert list(due()) == found[-2:]
    assert len(asked) == len(found)
    assert list(due()) == found[-2:]
    assert len(asked) <= 3
