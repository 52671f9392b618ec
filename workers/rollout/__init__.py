"""Rollouts: the explorer process, which makes leased rollouts with the current weights.

view            the part of the log read by the explorer: its slot, the spine, the weights
version_gate    the gate between rollouts, evaluations and new weights
loader          loads the weights published in the log into the rollouts' engine
rollouts        `Rollouts`: the one path of a rollout, a group and an evaluation's rows: slots, time-out, retries
rollout_traces  the spans of traced leases, rollouts and experiences
leased          the rollouts of a task lease: ids and seeds before, events after, on their way to the outbox
eval_engine     the engine for evaluations: shared with the rollouts, or a separate one
eval_scores     the scores of held-out rows, and their stored texts
evaluator       held-out rows, answered by a pinned weight version
processing      the experience pipeline on leased groups, and its verdicts
rollout_log     failed rollouts and answered evaluations, as lines of the explorer's log
outbox          events on their way to the log, in order, bounded
tried_rollout   a tried rollout and first rows, as answers
tried           one rollout outside of any experiment, with everything that happened in it
trial           first rows and a tried rollout of a file not yet submitted, in a process of its own
explorer        the process's loop: leases, rollouts, evaluations, weights
serving/        explorers as HTTP servers for clients, learning from the clients' feedback
"""
