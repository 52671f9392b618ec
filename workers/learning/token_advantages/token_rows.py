"""A batch's tokens as one row for each response, for sums over later tokens; whitening."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from rftd.workers.learning.losses.batch_tokens import BatchTokens

VARIANCE_FLOOR = 1e-8
"""Added to the variance, so that equal values become 0 and not NaN."""


def places(batch: BatchTokens) -> tuple[Tensor, int]:
    """Returns each token's index in a table of one row of L columns for each response, flattened; and L, the largest
    number of trained tokens of a response  # [N] int64

    Only trained tokens have an index.
    """
    ones = batch.sequence.new_ones(batch.sequence.shape)
    counts = ones.new_zeros(batch.sequences).index_add(0, batch.sequence, ones)
    width = int(counts.max()) if batch.sequences else 0
    # `sequence` ascends, so the place within a response is the running number less that of the response's first token.
    within = ones.cumsum(0) - 1 - (counts.cumsum(0) - counts)[batch.sequence]
    return batch.sequence * width + within, width


def token_rewards(batch: BatchTokens) -> Tensor:
    """Returns the reward of each token: the response's reward at its last trained token, else 0, less the token's KL
    penalty  # [N]
    """
    rewards = batch.old_logprobs.new_zeros(batch.old_logprobs.shape)
    if len(rewards):
        last = batch.sequence.new_ones(batch.sequence.shape, dtype=batch.expert.dtype)
        # The last trained token, not the last of the response: a masked end, such as a tool's, has no gradient to carry
        # a reward.
        last[:-1] = batch.sequence[1:] != batch.sequence[:-1]
        rewards = batch.rewards.to(rewards.dtype)[batch.sequence].where(last, rewards)
    return rewards if batch.penalties is None else rewards - batch.penalties


def discounted(batch: BatchTokens, values: Tensor, factor: float) -> Tensor:
    """Returns, for each token, the discounted sum of its value and the values of all later tokens of its response
    # [N] -> [N]

    A value k tokens later counts `factor` to the power of k.
    """
    where, width = places(batch)
    # Rows shorter than L end in zeros, which add nothing, so that no mask is needed.
    rows = values.new_zeros(batch.sequences * width).index_add(0, where, values).view(batch.sequences, width)
    ahead = rows.new_zeros(batch.sequences)
    # Along time, for all responses at once: a cumulative product of factors would underflow in long responses.
    for column in range(width - 1, -1, -1):
        ahead = rows[:, column] + factor * ahead
        rows[:, column] = ahead
    return rows.view(-1)[where]


def following(batch: BatchTokens, values: Tensor) -> Tensor:
    """Returns the value of the next token of the same response; 0 for the last  # [N] -> [N]"""
    shifted = values.new_zeros(values.shape)
    if len(values):
        same = batch.sequence[1:] == batch.sequence[:-1]
        # In memory the last token of a response is followed by the first of another, whose value is no part of this
        # one.
        shifted[:-1] = values[1:].where(same, shifted[1:])
    return shifted


def whitened(values: Tensor) -> Tensor:
    """Returns the values less their mean, divided by their unbiased standard deviation  # [N] -> [N]"""
    # float64: a mean over tens of thousands of tokens in float32 is off by more than small advantages are.
    exact = values.double()
    centred = exact - exact.sum() / max(1, len(values))
    variance = centred.square().sum() / max(1, len(values) - 1)
    return (centred * (variance + VARIANCE_FLOOR).rsqrt()).to(values.dtype)
