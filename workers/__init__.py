"""The work. Workers know the log, the artifact store and nothing else, so where they run does not matter.

In reading order:

plugins       named extensions: our table, then entry points of third parties
pretrained    models of Hugging Face's layout, read one at a time
chat/         tokenizers, and the model as a workflow sees it
tasksets/     datasets of tasks: jsonl files, their digest, the order of their rows
policies/     how far explorers may run ahead, and what may be trained on: pure objects
dispatcher/   gives groups of rollouts to worker slots, closes groups, decides evaluations
explorer/     one process: runs leased rollouts against the current weights
workflows/    how one rollout of a task goes
rewards/      what a response is worth
rollout/      the rollout engine's seam, and the engines
planner/      decides which experiences form the next batch
trainer/      one process: executes planned batches; the trainer engine's seam, and the engines
algorithms/   objectives: advantage, losses, what they need
weights/      how a weight version gets from the trainer to explorers
device_turn   rollouts and training steps take turns on one device
forecast/     an experiment in virtual time, by the real planner and policies
membership    who a worker is, that it lives, how it left
taking_up     a follower that goes on from the newest snapshot of its fold
process       a worker process around its loop
executors/    where worker processes run

Only engines and losses import torch.
"""
