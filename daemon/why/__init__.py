"""Why is it waiting: for each role what it does or waits for, since when, for whom, and what would unblock it.

Every wait has a name. In reading order:

wait         one wait, and the answer as a whole
scene        what is looked at: the folded state, who is alive, the processes, the log
life         the experiment itself, and the controller
planning     the planner
stragglers   the slowest task that a step waits for
dispatching  the dispatcher, and evaluations
workers      the trainer and the explorers
answer       all of them, worst first
tracker      since when
offline      the same from a log without a daemon
"""
