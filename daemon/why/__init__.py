"""Why is it waiting: for each role what it does or waits for, since when, for whom, and what would unblock it.

Every wait has a name. Those who decide say themselves why they stop; here it gets its words. In reading order:

wait         one wait, and the answer as a whole
scene        what is looked at: the folded state, what the deciders said, who is alive, the processes, the log
life         the experiment itself, and the log under it
stragglers   the slowest task that a step waits for
holds        controller, planner, dispatcher and evaluations, by the hold that each returned
workers      the trainer and the explorers
answer       all of them, worst first, each with the time since when
offline      the same from a log without a daemon
"""
