"""Rollouts: the explorer process, which makes leased rollouts with the current weights.

In reading order:

view         the part of the log that the explorer reads: its slot, the spine, the weights
version_gate the gate between rollouts, evaluations and new weights
loader       the engine of the rollouts follows the weights that the log publishes
rollouts     `Rollouts`: the one path of a rollout, a group and an evaluation's rows: places, time-out, retries
rollout_traces  the spans of leases, rollouts and experiences, where they are traced
leased       the rollouts of a task lease: ids and seeds before, events after
eval_engine  where evaluations are answered: on the engine of the rollouts, or on another one
eval_scores  the scores of held-out rows, and the texts that are kept
evaluator    held-out rows, answered by a pinned weight version
threads      workflows on threads of their own, if that is asked for
orphans      work that does not end when it is cancelled
rollout_log  failed rollouts and answered evaluations, as lines of the explorer's log
hand_over    the events of leases, on their way to the outbox
outbox       events on their way to the log, in order, bounded
explorer     the process's loop
engine       `RolloutEngine`: the seam
sampling     the settings that tokens can be drawn with
engines/     one file or folder for each engine
response     an answer of the model: text, tokens, log-probabilities, spans
call_spans   the spans of calls of the model, rewards and agents
model        `Model`: chat and complete over any rollout engine, with derived ids and seeds
endpoint/    the same model over HTTP, for agent programs that know OpenAI's API
auxiliary/   models beside the one that is trained: judges and others, with engines of their own or served by somebody
workflows/   workflows, and attempts to run them
rewards/     rewards, and the scorer that calls them
"""
