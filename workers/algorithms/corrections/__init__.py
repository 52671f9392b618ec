"""Corrections for data that older weights drew, over any policy loss; in reading order:

correction.py  the seam: what a correction sees, and what it gives: a multiplier and a mask for each token
importance.py  multipliers: decoupled, tis, icepop
rejection.py   masks by the ratio or its divergence, of tokens or of whole responses
kpop.py        a mask by the KL of "this token, or any other"
m2po.py        a mask by the second moment of a whole batch
opsm.py        a mask of responses with a negative advantage that have drifted
registry.py    the table of them
chain.py       those of one objective put together, and which log-probabilities are the old ones
"""
