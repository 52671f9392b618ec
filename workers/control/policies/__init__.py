"""How far explorers may run ahead, and what may be trained on: pure objects, no I/O, no clock, no randomness.

policy       the seam: what a policy sees (`PolicyView`) and what it answers
buffer_index what may be trained, in the order of a policy: an index of ids, priorities and versions
priorities   who is trained first: functions of an experience and its uses
paced        what policies have in common: the queue, the sweep at consumption, a capacity
hard_bound   admission by capacity, and a sweep at consumption: no batch holds a staler experience
in_order     the same, with batches in the order of the dataset: for deterministic runs
areal        AReaL's capacity: admission alone
verl_window  verl's window between two synchronisations
windowed     NeMo-RL's window of versions: no gate, a sweep, groups under way given up
weight_fifo  NeMo-RL's: the oldest version within the bound first
ready_first  NeMo-RL's: a gate at dispatch, then whatever is ready
sample_lag   PipelineRL's: ahead by so many samples
registry     the table of policies
"""
