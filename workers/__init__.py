"""The work, in three planes. Workers know the log, the artifact store and nothing else: where they run does not matter.

In reading order:

algorithms/   algorithms as data, and the advantages of groups
control/      who decides: planner, dispatcher, policies; pure, in the daemon's process
rollout/      who explores: the explorer process, its engines, workflows and rewards
training/     who learns: the trainer process, its engines, losses and checkpoints
tasksets/     rows and how they become tokens
tracking/     trackers: followers of the log that show figures elsewhere
weights/      how a weight version gets from the trainer to explorers
tinker/       a service that trains and generates: the seam to it
models/       models of Hugging Face's layout that are not loaded
devices/      devices, their memory, and turns on one
membership    who a worker is, that it lives, how it left
usage         the memory and processor time of a worker's processes
process       a worker process around its loop
guest         a worker that its host runs: on a thread and a loop of its own
launcher/     where worker processes run
api           the names that packages of third parties import

No import runs between control, rollout and training. Only engines and losses import torch.
"""
