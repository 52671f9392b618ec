"""The work, in three planes. Workers know the log, the artifact store and nothing else: where they run does not matter.

control/     who decides: planner, dispatcher, policies; pure, in the daemon's process
generation/  the seam to a model: engines, requests, answers, the endpoint, models beside the one that is trained
workflows/   workflows, the attempts to run them, and rewards
rollout/     who explores: the explorer process
learning/    algorithms, advantages, losses, corrections, the training of a stage; the trainer engine's seam
training/    who learns: the trainer process, its loop, checkpoints and publications
engines/     what computes: one folder for each engine, with both halves
weights/     how a weight version gets from the trainer to explorers
datasets/    rows and how they become tokens
models/      models of Hugging Face's layout that are not loaded
conversion/  checkpoints of several trainers as folders that transformers loads
devices/     devices, their memory, and turns on one
hosts/       where worker processes run, and who a worker is
process      a worker process around its loop
guest        a worker that its host runs: on a thread and a loop of its own
tracking/    trackers: followers of the log that show figures elsewhere
api          the names that packages of third parties import

No import runs between control, rollout and training. Only engines and losses import torch.
"""
