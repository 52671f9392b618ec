"""The work, in three planes. Workers know only the log and the artifact store: their machine does not matter.

control/     who decides: planner, dispatcher, policies; pure, in the daemon's process
generation/  the seam to a model: engines, requests, answers, the endpoint, models besides the trained one
workflows/   workflows, the attempts to run them, and rewards
pipelines/   operators on rows before an experiment, and on the experiences of finished groups
rollout/     who explores: the explorer process
learning/    algorithms, advantages, losses, corrections, the training of a stage; the trainer engine's seam
training/    who learns: the trainer process, its loop, checkpoints and publications
engines/     what computes: one folder for each engine, with both halves
weights/     transport of a weight version from the trainer to explorers
datasets/    rows and how they become tokens
models/      models in Hugging Face's layout, read without loading
conversion/  checkpoints of several trainers as folders that transformers loads
devices/     devices, their memory, and turns on one
hosts/       where worker processes run, and their identities
process      a worker process around its loop
guest        a worker inside its host's process: with its own thread and loop
tracking/    trackers: followers of the log that show figures elsewhere
api          the names imported by packages of third parties

No import runs between control, rollout and training. Only engines and losses import torch.
"""
