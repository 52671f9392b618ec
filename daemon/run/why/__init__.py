"""The answer to `rftd why`: each role's wait, since when, for whom, and what would unblock it.

Every wait has a name. The deciders return their own holds, which hold their own words (`workers/control/hold.py`); this
package asks for them, says the rest itself, and decides nothing. In reading order:

wait      one wait, and the answer as a whole
scene     what is looked at: the folded state, what the deciders said, who is alive, the processes, the log
life      the experiment itself
deciders  controller, planner, dispatcher and evaluations; the slowest task that a step waits for
workers   the trainer and the explorers
answer    all of them, worst first, each with the time since when; the answer from a log without a daemon
"""
