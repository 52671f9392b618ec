"""Tokens of a batch as rows of responses, to go through them from their ends; and whitening."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from rftd.workers.training.losses.batch_tokens import BatchTokens

VARIANCE_FLOOR = 1e-8


def places(batch: BatchTokens) -> tuple[Tensor, int]:
    """Where each token lies in rows of L places, one row for each response, and L  # [N] int64

    Only trained tokens have a place: what a tool said in between takes none.
    """
    ones = batch.sequence.new_ones(batch.sequence.shape)
    counts = ones.new_zeros(batch.sequences).index_add(0, batch.sequence, ones)
    width = int(counts.max()) if batch.sequences else 0
    within = ones.cumsum(0) - 1 - (counts.cumsum(0) - counts)[batch.sequence]
    return batch.sequence * width + within, width


def token_rewards(batch: BatchTokens) -> Tensor:
    """The reward of each response at its last trained token, less the penalties  # [N]"""
    found = batch.old_logprobs.new_zeros(batch.old_logprobs.shape)
    if len(found):
        last = batch.sequence.new_ones(batch.sequence.shape, dtype=batch.expert.dtype)
        last[:-1] = batch.sequence[1:] != batch.sequence[:-1]
        found = batch.rewards.to(found.dtype)[batch.sequence].where(last, found)
    return found if batch.penalties is None else found - batch.penalties


def discounted(batch: BatchTokens, values: Tensor, factor: float) -> Tensor:
    """Of each token the sum of its value and of those after it in its response, each further one times `factor`

    # [N] -> [N]
    """
    where, width = places(batch)
    rows = values.new_zeros(batch.sequences * width).index_add(0, where, values).view(batch.sequences, width)
    ahead = rows.new_zeros(batch.sequences)
    for place in range(width - 1, -1, -1):
        ahead = rows[:, place] + factor * ahead
        rows[:, place] = ahead
    return rows.view(-1)[where]


def following(batch: BatchTokens, values: Tensor) -> Tensor:
    """The value of the next token of the same response; 0 after the last  # [N] -> [N]"""
    found = values.new_zeros(values.shape)
    if len(values):
        same = batch.sequence[1:] == batch.sequence[:-1]
        found[:-1] = values[1:].where(same, found[1:])
    return found


def whitened(values: Tensor) -> Tensor:
    """Less their mean, in unbiased standard deviations  # [N] -> [N]"""
    exact = values.double()
    centred = exact - exact.sum() / max(1, len(values))
    variance = centred.square().sum() / max(1, len(values) - 1)
    return (centred * (variance + VARIANCE_FLOOR).rsqrt()).to(values.dtype)
