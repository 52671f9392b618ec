"""Votes of several answers to one question: which of them say the same."""

from __future__ import annotations

from collections.abc import Sequence

from rftd.workers.rollout.rewards.answer import agree, answer_of, visible
from rftd.workers.rollout.rewards.words import closing


def votes_of(responses: Sequence[str | None]) -> list[int]:
    """For each response the number of the first one that gives the same answer, compared by value.

    A response that marks no answer votes by its closing words. None, no response at all, agrees with nothing.
    """
    said = [None if response is None else _said(response) for response in responses]
    votes: list[int] = []
    for number, answer in enumerate(said):
        vote = number
        for earlier in dict.fromkeys(votes):
            before = said[earlier]
            if answer is not None and before is not None and (answer == before or agree(answer, before)):
                vote = earlier
                break
        votes.append(vote)
    return votes


def _said(response: str) -> str:
    response = visible(response)
    marked = answer_of(response)
    if marked is not None:
        return marked
    return closing(response.rpartition("</think>")[2]).strip()
