"""Corrections for tokens drawn by older weights, usable with any policy loss; in reading order:

correction.py  the interface: the tokens passed to a correction, and its result: multiplier and mask of each token
importance.py  multipliers: decoupled, tis, icepop
rejection.py   masks of tokens or of complete responses: by the ratio or its divergence, KPop, OPSM, M2PO
covariance.py  masks and marks by the covariance of advantage and log-probability over a mini-batch
registry.py    the table of corrections
chain.py       all corrections of one objective, and the choice of old log-probabilities
"""
