"""Corrections for data drawn by older weights, over any policy loss; in reading order:

correction.py  the seam: what a correction sees, and what it gives: a multiplier and a mask for each token
importance.py  multipliers: decoupled, tis, icepop
rejection.py   masks of tokens or of whole responses: by the ratio or its divergence, KPop, OPSM, M2PO
covariance.py  masks and marks by the covariance of advantage and log-probability over a whole mini-batch
registry.py    the table of them
chain.py       those of one objective put together, and which log-probabilities are the old ones
"""
