"""Policies decide how far explorers may run ahead and which experiences are trained: pure objects, no I/O, no clock, no
chance.

policy       the seam: a policy's inputs (`PolicyView`) and its answers
buffer_index experiences fit for training, in the order of a policy: an index of ids, priorities and versions
priorities   the order of training: functions of an experience and its uses
paced        the common part of policies: `select` for a batch, `evict`, a capacity, declared arguments
bounded      kinds with a guaranteed bound: hard_bound, in_order, weight_fifo, windowed
admission    kinds pacing by admission alone: areal, ready_first, verl_window, sample_lag
registry     the table of policies

A new policy: a subclass of `Paced` with its `PolicyPage` in a file here, one line in `registry`, and its row of the
documentation by tests/golden/make_policy_tables.py; tests/contract/test_staleness_policies.py checks its guarantees.
"""
