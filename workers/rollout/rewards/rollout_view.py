"""`RolloutView`: the rollout that a reward scores, for rules about lengths, ends and earlier turns."""

from __future__ import annotations

import msgspec

from rftd.workers.rollout.response import Response


class RolloutView(msgspec.Struct, frozen=True):
    """The model's answers so far, the scored one last; at least one."""

    turns: tuple[Response, ...]

    @property
    def response_tokens(self) -> int:
        """The number of tokens that the model drew for the scored answer."""
        return len(self.turns[-1].tokens)

    @property
    def finish(self) -> str:
        """Why the scored answer ended: `stop`, or `length` where it was cut at its limit."""
        return self.turns[-1].finish

    @property
    def drawn_tokens(self) -> int:
        """The number of tokens that the model drew in all turns."""
        return sum(len(turn.tokens) for turn in self.turns)


def was_cut(rollout: RolloutView | None) -> bool:
    """True if the scored answer ended at its length limit; of a text alone nobody knows."""
    return rollout is not None and rollout.finish == "length"
