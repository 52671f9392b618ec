"""Losses: the objective of a stage, per token, and how it becomes one number.

In reading order:

policy_loss         `PolicyLoss`, the main term: the seam, and the tokens that a loss sees
registry            the table of policy losses
arguments           checks of their arguments
token_ratios        losses with the gradient of each token's ratio: ppo, sapo, dppo, probability_clip, sppo, ...
weighted_gradients  REINFORCE with a detached weight: cispo, reinforce, topr, opmd, rec
response_ratios     losses of the ratio of a whole response: gspo, gmpo, vespo
mini_batch_masks    losses that choose tokens among all of their step: m2po, clip_cov, kl_cov
sft                 likelihoods of given answers: sft, sft_is, sft_phi
mix                 PPO of rollouts and the likelihood of an expert's rows: mix, mix_chord
preference_losses   losses of pairs and of labelled answers: dpo, ipo, simpo, orpo, kto
kl_losses           the distance to a reference
entropy_losses      the entropy bonus
batch_tokens        a whole batch before its step: what one micro-batch cannot know
aggregation         how per-token values become one number, whatever the micro-batches
diagnostics         how far the tokens' weights are from the present ones, and what was done about it
objective           the parts of one stage put together
demands             what they ask of an engine beyond log-probabilities, and which argument asks
from_tensors        the same parts over plain tensors, for a notebook

A new policy loss is one class, in the chapter of its family or in a file of its own, and one line of the registry.
Nothing here imports torch: losses use methods of the tensors that they are given, so that names and arguments are
checked where torch is not installed or too slow to import.
"""
