"""The supervisor: which experiment runs, and its life from start to end.

registry     every experiment in the log, by state, folded from the spines
intake       takes experiments in
reach        whether weights reach every explorer
forking      a fork's specification, and what it may change
preflight    what only the daemon can know before it accepts: models, rows, digests
obstacle     what an experiment pauses for by itself
disk_guard   whether there is space to go on
parts        whether what it names of third parties is installed
controller   the life of one experiment: stages, completion, failure; pure
fleet        its worker processes: start, adopt, restart with back-off, drain
tagging      changed priorities of experiences
snapshotter  keeps a recent fold of the run in a file
run          one experiment under way: planner, dispatcher and controller on one fold
keeper       archives, restores and removes what has ended
collector    removes what no event names, of what has ended
hosting      workers of one that another daemon decides on
runs         those under way, several at once
supervisor   the queue and the commands
"""
