"""Token advantages: how much better than expected each token was, asked before the step with the whole batch (tensors).

Each is an advantage function of groups too, and goes on from what that gives. In reading order:

token_advantage.py  `TokenAdvantage`, the seam, and the one that an algorithm names
token_rows.py       returns from the ends of responses, whitening
penalised.py        advantages of rewards less a KL penalty
returns.py          generalised advantages of a critic, REINFORCE++ and its baseline
distillation.py     a teacher's log-probabilities
entropy_clip.py     Clip_B and Clip_V
token_baseline.py   a baseline for each place of a group's responses
"""
