"""Losses: the objective of a stage, per token, and its aggregation.

In reading order:

policy_loss         `PolicyLoss`, the main term: the interface, and the tokens passed to a loss
loss_source         losses from Python text submitted with an experiment
registry            the table of policy losses
arguments           checks of their arguments
token_ratios        losses with the gradient of each token's ratio: ppo, sapo, dppo, probability_clip, sppo, ...
weighted_gradients  REINFORCE with a detached weight: cispo, reinforce, topr, opmd, rec
response_ratios     losses of the ratio of a complete response: gspo, gmpo, vespo
mini_batch_masks    losses with a choice among all tokens of a step: m2po, clip_cov, kl_cov
sft                 likelihoods of given answers: sft, sft_is, sft_phi
mix                 PPO of rollouts and the likelihood of an expert's rows: mix, mix_chord
echo                PPO of the own tokens and the likelihood of the environment: echo
preference_losses   losses of pairs and of labelled answers: dpo, ipo, simpo, orpo, kto
kl_losses           the distance to a reference
entropy_losses      the entropy bonus
batch_tokens        a complete batch before its first step, beyond one micro-batch
aggregation         from per-token values to one number, independent of micro-batches
diagnostics         distances between the weights that drew the tokens and the current ones; effects of corrections
objective           the terms of one stage, combined
demands             needs beyond log-probabilities, and the arguments behind them
from_tensors        the same losses over plain tensors, for a notebook

A new policy loss is one class, in the file of its family or in a separate file, and one line of the registry. Nothing
here imports torch: losses use methods of their tensors, so that names and arguments are checked without torch, or
before its slow import.
"""
