"""The learner of engines whose models run in processes of rftd, on one device or spread over ranks.

In reading order:

backend.py    the interface to one model: forward passes, gradients, parameters and state; the models of a stage
learner.py    `ModelLearner`: policy, reference, teacher and critic (`ModelCritic`) of a stage over their backends
optimizer.py  AdamW or SGD: clipped, stepped, saved by parameter name
low_rank.py   low-rank matrices added to linear layers (peft), and a policy that trains only them
engine.py     `Policy`, the interface to the model under training; `ModelEngine`: stages, digests and checkpoints
saving.py     the files of a checkpoint
snapshot.py   the weights of one version for explorers
model.py      model folders: read, written
opening.py    torch's switches, the memory check, and facts that influence the weights' bits
"""
