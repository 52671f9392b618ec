"""Votes of several answers to one question: which of them say the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rftd.workers.rollout.rewards.answer import agree, answer_of, visible
from rftd.workers.rollout.rewards.number import Quantity, parse_quantity
from rftd.workers.rollout.rewards.words import closing, only_quantity


class _Vote(NamedTuple):
    """What a response answers."""

    text: str
    quantity: Quantity | None
    """The one number in the text."""

    def agrees(self, other: _Vote) -> bool:
        if self.text == other.text or agree(self.text, other.text):
            return True
        return self.quantity is not None and other.quantity is not None and self.quantity.agrees(other.quantity)


def votes_of(responses: Sequence[str | None]) -> list[int]:
    """For each response the number of the first one that gives the same answer, compared by value.

    A response that marks no answer votes by its closing words. None, no response at all, agrees with nothing.
    """
    answers = [None if response is None else _vote(response) for response in responses]
    votes: list[int] = []
    for number, answer in enumerate(answers):
        vote = number
        for earlier in dict.fromkeys(votes):
            before = answers[earlier]
            if answer is not None and before is not None and answer.agrees(before):
                vote = earlier
                break
        votes.append(vote)
    return votes


def _vote(response: str) -> _Vote:
    response = visible(response)
    marked = answer_of(response)
    text = closing(response.rpartition("</think>")[2]).strip() if marked is None else marked
    return _Vote(text, parse_quantity(text) or only_quantity(text))
