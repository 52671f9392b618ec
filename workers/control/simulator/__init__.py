"""`rftd sim async`: an experiment in virtual time, for choosing policy and sizes before paying for any hardware.

Durations of rollouts and training steps are drawn or given; decisions are real: the folds, the planner and the policy.

system       units, slots and times, and the upper bound of throughput
unit         one rollout unit: its slots, queue and weights; groups under way, by version
clerk        the folds and the planner, fed with events absent from any log
simulation   the course of events in virtual time
report       policies side by side, and the synchronous modes for comparison
options      from options of the command to stages and machines
outcome      the figures of a run: throughput, staleness, idle fractions, drops
"""
