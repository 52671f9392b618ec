"""`TurnRecord`: what a rollout drew over the endpoint, call by call, and the sequences that are trained of it.

A turn whose prompt goes on from an earlier turn's ids is that turn's child. The first child of a turn continues its
sequence; each further one (a second choice, a conversation that branches) begins a sequence of its own, with all that
came before as its prompt. So each drawn token is trained once, in the order and after the ids that it was drawn after.
"""

from __future__ import annotations

from collections.abc import Sequence

from rftd.workers.generation.response import Response
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.trajectory import Trajectory


class RecordedTurn:
    """One answer of the model, after the turn whose ids its prompt begins with."""

    def __init__(self, response: Response, parent: RecordedTurn | None) -> None:
        self.response = response
        self.parent = parent

    @property
    def tokens(self) -> tuple[int, ...]:
        """Everything up to its end: the beginning of a prompt that goes on from it."""
        return self.response.prompt + self.response.tokens


class TurnRecord:
    """The turns of one rollout, found by what a client says came before."""

    def __init__(self) -> None:
        self._sequences: list[list[RecordedTurn]] = []
        """The one with the newest turn is last."""
        self._known: dict[bytes, list[RecordedTurn]] = {}

    @property
    def turns(self) -> Sequence[Response]:
        """The answers of the sequence with the newest one."""
        return [turn.response for turn in self._sequences[-1]] if self._sequences else []

    def add(self, turn: RecordedTurn, key: bytes) -> None:
        """Records a turn; `find(key)` gives it from now on."""
        self._known.setdefault(key, []).append(turn)
        sequence: list[RecordedTurn] = []
        for each in self._sequences:
            if each[-1] is turn.parent:
                sequence = each
                self._sequences.remove(each)
                break
        sequence.append(turn)
        self._sequences.append(sequence)

    def find(self, key: bytes) -> RecordedTurn | None:
        """The turn with this key; of several the first that nothing continues, else the newest."""
        found = self._known.get(key, [])
        last = {id(sequence[-1]) for sequence in self._sequences} if len(found) > 1 else ()
        return next((turn for turn in found if id(turn) in last), found[-1] if found else None)

    def longest_prefix(self, tokens: Sequence[int]) -> RecordedTurn | None:
        """The turn with the most ids that `tokens` begin with."""
        given = tuple(tokens)
        found = [
            turn
            for sequence in self._sequences
            for turn in sequence
            if len(turn.tokens) < len(given) and given[: len(turn.tokens)] == turn.tokens
        ]
        return max(found, key=lambda turn: len(turn.tokens), default=None)

    def results(self, reward: RewardResult, *, cut: Response | None = None) -> list[RolloutResult]:
        """The sequences with the reward of the rollout, those that ended earlier first; none if nothing was drawn.

        `cut` is the answer to a prompt that did not fit and with which the rollout ended: such a rollout earns nothing.
        """
        made = []
        for number, sequence in enumerate(self._sequences, start=1):
            trajectory = Trajectory()
            for turn in sequence:
                trajectory.add(turn.response)
            if cut is not None and number == len(self._sequences):
                trajectory.add(cut)
            made.append(trajectory.result(reward))
        if cut is not None and not made:
            trajectory = Trajectory()
            trajectory.add(cut)
            made.append(trajectory.result(reward))
        return made
