"""The explorer: one process that runs leased rollouts against the current weights.

view        what it reads of the log: its slot, the spine, the weights
gate        which rollouts may run on which weights
attempt     one rollout: its workflow, with time-out and retries, into an event
threads     workflows on threads of their own, if that is asked for
orphans     work that does not end when it is cancelled
outbox      events on their way to the log, in order, bounded
evaluator   held-out rows, answered by a pinned weight version on an engine of its own
explorer    the process's loop
"""
