"""Token advantages: how much better than expected each token was, computed from the complete batch before its first
step (tensors).

Each class is an advantage function of groups too; its token advantages start from the advantages of the groups. In
reading order:

token_advantage.py  `TokenAdvantage`: the interface, and the lookup by an algorithm's name
token_rows.py       discounted sums over a response's later tokens; whitening
penalised.py        advantages of rewards less a KL penalty
returns.py          generalised advantages of a critic, REINFORCE++ and its variant with a group's baseline
distillation.py     advantages by a teacher's log-probabilities
entropy_clip.py     Clip_B and Clip_V
token_baseline.py   a baseline for each position of a group's responses
"""
