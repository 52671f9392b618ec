"""The answer to `rftd why`: each role's wait, since when, for whom, and the event ending the wait.

Every wait has a name. The deciders return their own holds with their own words (`workers/control/hold.py`); this
package asks for the holds, adds the other waits, and decides nothing. In reading order:

wait         one wait, and the answer as a whole
run_snapshot the inputs: the folded state, the deciders' last holds, living workers, the processes, the log
life         the experiment itself
deciders     controller, planner, dispatcher and evaluations; the slowest task holding up a step
workers      the trainer and the explorers
pause        how far a pause has come: draining, quiet, released
under_way    rollouts or held-out rows under way, and the words for them
token_meter  the tokens drawn meanwhile, from heartbeats
answer       all waits, worst first, each with its start time; the answer from a log without a daemon
"""
