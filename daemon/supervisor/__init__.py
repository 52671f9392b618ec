"""The supervisor: which experiment runs, and its life from start to end.

hearing      what survives of a shortened log is heard; whom a loss concerns is stopped
intake       takes experiments in, such that weights reach every explorer
submissions  submit and fork: each once for its key
forking      a fork's specification, and what it may change
preflight    what only the daemon can know: models, rows, digests before it accepts, parts of third parties later
taskset_checks  arguments of workflows and rewards, and biased tokens, by files and third parties
disk_guard   whether there is space to go on
fleet        its worker processes: start, adopt, restart with back-off, drain
orders       commands by their meaning: each once, and its answer from the log
verdicts     dead letters that are retried or dropped: each once
inbox        what owners ask of a run under way
transitions  what may be done to an experiment, by its state
snapshotter  keeps a recent fold of the run in a file
run          one experiment under way: planner, dispatcher and controller on one fold
keeper       archives, restores and removes what has ended
payloads     drops the token arrays that nobody will train again
collector    removes what no event names, of what has ended
hosting      workers of one that another daemon decides on
runs         those under way, several at once
supervisor   the queue and the commands
"""
