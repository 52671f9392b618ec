"""Losses: the objective of a stage, per token, and how it becomes one number.

In reading order:

policy_loss     `PolicyLoss`, the main term: the seam, and the tokens that it sees
registry        the table of policy losses
arguments       checks of their arguments
preferences     what losses of pairs have in common
kl_losses       the distance to a reference
entropy_losses  the entropy bonus
batch_tokens    a whole batch before its step: what one micro-batch cannot know
aggregation     how per-token values become one number, whatever the micro-batches
diagnostics     how far the tokens' weights are from the present ones, and what was done about it
objective       the parts of one stage put together
from_tensors    the same of plain tensors, for a notebook

Beside them there is one file for each policy loss. Nothing here imports torch: losses use methods of the tensors that
they are given, so that names and arguments are checked where torch is not installed or too slow to import.
"""
