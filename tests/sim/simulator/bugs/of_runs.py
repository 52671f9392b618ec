"""Bugs of who keeps the errors of runs and workers apart, and of what is given up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

from rftd.daemon.run.supervisor import commands
from rftd.daemon.run.supervisor.run import Run
from rftd.daemon.run.supervisor.runs import Runs
from rftd.streams.events.batch import BatchAbandoned
from rftd.streams.folds.replay_buffer import ReplayBuffer
from rftd.streams.folds.spine import Status
from rftd.streams.log import append_retry
from rftd.streams.log.envelope import Draft
from rftd.workers.control.controller import Controller
from rftd.workers.control.hold import REFUSALS, Trouble, trouble_of_refusal
from simulator.bugs.bug import Bug, instead


def _end_the_daemon() -> Any:
    """Whatever a role or a run raises is raised on."""

    def raising(_self: Run, role: str, error: BaseException) -> Trouble:
        raise RuntimeError(f"the {role} raised {error!r}")

    async def breaking(_self: Runs, _entry: object, error: BaseException, **_: object) -> float:
        raise RuntimeError(repr(error))

    stack = ExitStack()
    stack.enter_context(mock.patch.object(Run, "_note_trouble", raising))
    stack.enter_context(mock.patch.object(Runs, "_note_broken", breaking))
    return stack


def _in_one_piece(_parts: Any) -> Callable[[Sequence[Draft]], list[Sequence[Draft]]]:
    return lambda drafts: [drafts]


def _believe_strangers(refused: Any) -> Callable[[Controller], Trouble | None]:
    def believing(self: Controller) -> Trouble | None:
        heard: set[Any] = self.__dict__.setdefault("heard", set())
        for worker, gone in self._state.roster.gone.items():
            if gone.role != "explorer" or gone.code not in REFUSALS or worker in heard:
                continue
            if self._state.spine.status is not Status.PAUSED:
                return trouble_of_refusal(gone, ours=False)
            heard.add(worker)
        found: Trouble | None = refused(self)
        return found

    return believing


def _lose_what_returns(_abandoned: Any) -> Callable[[ReplayBuffer, BatchAbandoned], dict[Any, Any]]:
    def losing(self: ReplayBuffer, event: BatchAbandoned) -> dict[Any, Any]:
        items = self._items.pop(event.batch, {})
        self._book(self._stage_of.pop(event.batch, 0), items, -1)
        return {}

    return losing


BUGS = (
    Bug(
        "what was released goes on without its turn",
        "nothing_moves_while_released",
        instead(commands, "requeued", lambda _: lambda event: event),
        within_seeds=200,
    ),
    Bug("an error of a run ends its daemon", "nothing_uncaught", _end_the_daemon, within_seeds=200),
    Bug(
        "an append is as large as what was decided",
        "liveness",
        instead(append_retry, "parts", _in_one_piece),
        within_seeds=200,
    ),
    Bug(
        "whoever refuses its work speaks for the experiment",
        "their_own_affair",
        instead(Controller, "_refusal_trouble", _believe_strangers),
        within_seeds=200,
    ),
    Bug(
        "the items of an abandoned batch do not return",
        "given_up_is_gone",
        instead(ReplayBuffer, "_fold_abandoned", _lose_what_returns),
        within_seeds=200,
    ),
)
