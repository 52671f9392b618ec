"""Policies say how far explorers may run ahead and what is trained on: pure objects, no I/O, no clock, no chance.

policy       the seam: what a policy sees (`PolicyView`) and what it answers
buffer_index what may be trained, in the order of a policy: an index of ids, priorities and versions
priorities   who is trained first: functions of an experience and its uses
paced        what policies have in common: the queue, the sweep at consumption, a capacity, declared arguments
bounded      kinds that keep the bound: hard_bound, in_order, weight_fifo, windowed
admission    kinds that pace by admission alone: areal, ready_first, verl_window, sample_lag
registry     the table of policies
"""
