"""Rollouts: the explorer process, which makes leased rollouts with the current weights.

view            the part of the log that the explorer reads: its slot, the spine, the weights
version_gate    the gate between rollouts, evaluations and new weights
loader          the engine of the rollouts follows the weights that the log publishes
rollouts        `Rollouts`: the one path of a rollout, a group and an evaluation's rows: places, time-out, retries
rollout_traces  the spans of leases, rollouts and experiences, where they are traced
leased          the rollouts of a task lease: ids and seeds before, events after
eval_engine     where evaluations are answered: on the engine of the rollouts, or on another one
eval_scores     the scores of held-out rows, and the texts that are kept
evaluator       held-out rows, answered by a pinned weight version
rollout_log     failed rollouts and answered evaluations, as lines of the explorer's log
hand_over       the events of leases, on their way to the outbox
outbox          events on their way to the log, in order, bounded
explorer        the process's loop
serving/        explorers that answer whoever asks over HTTP, and learn from what they are told of it
"""
