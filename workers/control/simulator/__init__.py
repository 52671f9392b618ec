"""`rftd sim async`: an experiment in virtual time, so that policy and sizes can be chosen before anything is paid for.

Rollouts and training steps take drawn or given times; who decides is real: the folds, the planner and the policy.

system       units, slots and times, and the throughput that nothing can beat
unit         one rollout unit: its slots, what waits for them, which weights it has; groups under way, by version
clerk        the folds and the planner, fed with events that nobody wrote to a log
simulation   the course of events
report       policies side by side, and the synchronous modes for comparison
asked        from options to stages and machines
outcome      what came out: throughput, staleness, idle shares, drops
"""
