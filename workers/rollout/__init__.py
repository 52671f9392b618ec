"""Rollouts: the explorer process, which runs leased rollouts against the current weights.

In reading order:

view         what the explorer reads of the log: its slot, the spine, the weights
version_gate which rollouts may run on which weights
rollouts     `Rollouts`: the one path of a rollout, a group and an evaluation's rows: places, time-out, retries
leased       the rollouts of a task lease: ids and seeds before, events after
evaluator    held-out rows, answered by a pinned weight version on an engine of its own
threads      workflows on threads of their own, if that is asked for
orphans      work that does not end when it is cancelled
outbox       events on their way to the log, in order, bounded
explorer     the process's loop
engine       `RolloutEngine`: the seam
sampling     how tokens are drawn
engines/     one file or folder for each engine
response     one answer of the model: text, tokens, log-probabilities, spans
model        `Model`: chat and complete over any rollout engine, with derived ids and seeds
workflows/   how one rollout of a task goes
rewards/     what a response is worth
"""
