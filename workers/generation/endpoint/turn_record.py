"""`TurnRecord`: the answers drawn by a rollout over the endpoint, and the sequences trained from them.

A turn whose prompt continues an earlier turn's ids is a child of that turn. The first child of a turn continues its
sequence; each further child (a second choice, a branching conversation) begins a new sequence with everything before as
its prompt. Each drawn token is therefore trained once, after the ids that preceded it when drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

from rftd.workers.generation.response import Response
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.trajectory import Trajectory


class RecordedTurn:
    """One answer of the model, linked to the earlier turn whose ids are the beginning of its prompt."""

    def __init__(self, response: Response, parent: RecordedTurn | None) -> None:
        """`parent` is the turn whose ids begin the prompt of `response`."""
        self.response = response
        self.parent = parent

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and answer ids: the beginning of every prompt continuing this turn."""
        return self.response.prompt + self.response.tokens


class TurnRecord:
    """The turns of one rollout, indexed by the conversation before each."""

    def __init__(self) -> None:
        self._sequences: list[list[RecordedTurn]] = []
        """Sequences of turns; the sequence with the newest turn is last."""
        self._by_key: dict[bytes, list[RecordedTurn]] = {}
        """Turns by key, in the order of recording."""
        self.answers: list[Response] = []
        """All answers, in the order of their recording."""

    @property
    def turns(self) -> Sequence[Response]:
        """Answers of the sequence with the newest turn."""
        return [turn.response for turn in self._sequences[-1]] if self._sequences else []

    def add(self, turn: RecordedTurn, key: bytes) -> None:
        """Records a turn under a key for `find`."""
        self._by_key.setdefault(key, []).append(turn)
        self.answers.append(turn.response)
        sequence: list[RecordedTurn] = []
        for earlier in self._sequences:
            if earlier[-1] is turn.parent:
                sequence = earlier
                self._sequences.remove(earlier)
                break
        sequence.append(turn)
        self._sequences.append(sequence)

    def find(self, key: bytes) -> RecordedTurn | None:
        """Returns the turn with this key; of several, the first without a continuation, else the newest."""
        turns = self._by_key.get(key, [])
        last = {id(sequence[-1]) for sequence in self._sequences} if len(turns) > 1 else ()
        return next((turn for turn in turns if id(turn) in last), turns[-1] if turns else None)

    def longest_prefix(self, tokens: Sequence[int]) -> RecordedTurn | None:
        """Returns the turn with the most ids at the beginning of `tokens`, itself shorter; None without any."""
        prompt = tuple(tokens)
        prefixes = [
            turn
            for sequence in self._sequences
            for turn in sequence
            if len(turn.tokens) < len(prompt) and prompt[: len(turn.tokens)] == turn.tokens
        ]
        return max(prefixes, key=lambda turn: len(turn.tokens), default=None)

    def results(self, reward: RewardResult, *, cut: Response | None = None) -> list[RolloutResult]:
        """Returns the recorded sequences as steps with the rollout's reward, in the order of their ends; empty without
        answers.

        `cut` is the response to an overlong prompt that ended the rollout: the rollout then earns nothing.
        """
        trained = []
        for number, sequence in enumerate(self._sequences, start=1):
            trajectory = Trajectory()
            for turn in sequence:
                trajectory.add(turn.response)
            if cut is not None and number == len(self._sequences):
                trajectory.add(cut)
            trained.append(trajectory.result(reward))
        if cut is not None and not trained:
            trajectory = Trajectory()
            trajectory.add(cut)
            trained.append(trajectory.result(reward))
        return trained
