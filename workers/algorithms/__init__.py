"""Objectives: which name stands for which advantage and which loss, and how those are computed.

In reading order:

definition.py      what an algorithm is: the parts that it takes by default, what it needs, where it comes from
definitions/       one file for each algorithm
registry.py        the table of them: one line each
advantages/        from the rewards of one closed group to advantages (numpy)
policy_losses/     the main term, per token
kl_losses.py       the distance to a reference, per token
entropy_losses.py  the entropy bonus
corrections/       what is done about tokens that older weights drew
batch_tokens.py    a whole batch before its step: what one micro-batch cannot know
aggregation.py     how per-token values become one number, whatever the micro-batches
diagnostics.py     how far the tokens' weights are from the present ones, and what was done about it
objective.py       the parts of one stage put together
from_tensors.py    the same of plain tensors, for a notebook

Nothing here imports torch: losses use methods of the tensors that they are given, so that names and arguments are
checked where torch is not installed or too slow to import.
"""
