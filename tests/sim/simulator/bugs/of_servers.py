"""Bugs of explorers that serve: what strangers were told does not hold."""

from __future__ import annotations

from typing import Any

from rftd.storage.files import outside_files
from rftd.workers.generation.endpoint.turn_record import RecordedTurn, TurnRecord
from rftd.workers.rollout.loader import WeightsLoader
from rftd.workers.rollout.serving import conversations
from rftd.workers.rollout.serving.conversations import Conversations
from rftd.workers.rollout.serving.history import CommittedRun, Feedback, History
from simulator.bugs.bug import Bug, instead


def _keep_it_later(judge: Any) -> Any:
    """Feedback is kept when the next comes, and was acknowledged before."""

    def judging(self: History, feedback: Feedback) -> bool:
        pending: list[Feedback] = self.__dict__.setdefault("pending", [])
        if feedback in pending:
            return False
        while pending:
            judge(self, pending.pop())
        pending.append(feedback)
        return True

    return judging


def _offer_nothing(_offer_rows: Any) -> Any:
    async def offering(_self: Conversations) -> bool:
        return True

    return offering


def _give_out_another(run: Any) -> Any:
    def running(self: History, row: int, place: int) -> CommittedRun:
        found: CommittedRun = run(self, row, 1 - place if place < 2 else place)
        return found

    return running


def _believe(_check: Any) -> Any:
    """A history is taken for the one that was promised, whatever it holds."""

    def checking(_self: History, _promised: Any) -> None:
        return

    return checking


def _miss_nothing(_difference_of: Any) -> Any:
    return lambda _path, _promised: ""


def _lose_a_branch(add: Any) -> Any:
    """What goes on from an answer that another one went on from already is left out."""

    def adding(self: TurnRecord, turn: RecordedTurn, key: bytes) -> None:
        if turn.parent is None or any(sequence[-1] is turn.parent for sequence in self._sequences):
            add(self, turn, key)

    return adding


def _measure_branches_together(result_of: Any) -> Any:
    """The sequences of a run may not be longer than the model takes, all of them together."""

    def measuring(run: CommittedRun, *, max_model_len: int) -> Any:
        result = result_of(run, max_model_len=max_model_len)
        result.check(max_model_len)
        return result

    return measuring


def _close_to_load(load: Any) -> Any:
    async def loading(self: WeightsLoader, engine: Any, target: Any) -> Any:
        self._gate.weights = (-1, -1)
        await self._member.clock.sleep(1.0)
        return await load(self, engine, target)

    return loading


BUGS = (
    Bug(
        "feedback is acknowledged before it is kept",
        "kept",
        instead(History, "judge", _keep_it_later),
        mode="served",
    ),
    Bug(
        "a commit is acknowledged and never offered",
        "liveness",
        instead(Conversations, "_offer_rows", _offer_nothing),
        mode="served",
    ),
    Bug(
        "the runs of a row are mixed up",
        "of_its_row",
        instead(History, "run", _give_out_another),
        mode="served",
    ),
    Bug(
        "an older history that was put back is believed",
        "history put back",
        instead(History, "check", _believe),
        mode="served",
        within_seeds=200,
    ),
    Bug(
        "verify does not compare a history with its promises",
        "history put back",
        instead(outside_files, "difference_of", _miss_nothing),
        mode="served",
        within_seeds=200,
    ),
    Bug(
        "a branch of a conversation is not trained",
        "drawn_once",
        instead(TurnRecord, "add", _lose_a_branch),
        mode="served",
        within_seeds=200,
    ),
    Bug(
        "branches of a conversation are measured together",
        "liveness",
        instead(conversations, "result_of", _measure_branches_together),
        mode="served",
        within_seeds=200,
    ),
    Bug(
        "an engine that loads weights answers nobody",
        "kept",
        instead(WeightsLoader, "_load", _close_to_load),
        mode="served",
    ),
)
