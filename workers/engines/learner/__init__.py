"""The learner of engines with a model in their own processes, on one device or spread over ranks.

In reading order:

backend.py    the seam: one model's forward passes, gradients, parameters to step, and state; the models of a stage
learner.py    `ModelLearner`: policy, reference, critic and teacher of a stage over their backends
critic.py     `ModelCritic`: the expected return at each token
optimizer.py  AdamW or SGD: clipped, stepped, saved by parameter name
policy.py     the seam of the model under training: opened, published, saved, restored
low_rank.py   low-rank matrices beside linear layers (peft), and the policy with them under training
engine.py     `ModelEngine`: stages, digests and checkpoints of a trainer engine
saving.py     the files of a checkpoint
snapshot.py   the weights of one version for explorers
model.py      model folders: read, written
opening.py    torch's switches, the device's memory at least, and the surroundings of a weight's bits
"""
