"""The torch trainer engine: one device, or ranks that each hold everything; deterministic on a CPU.

In reading order:

engine.py          `TorchTrainerEngine`: opens a model, trains batches, saves and loads
definition.py      the engine as the registry has it
arguments.py       its `engine_args`
opening.py         torch's switches, the device's memory at least, what the bits of the weights may depend on
token_trees.py     which responses are computed together, and what of them is computed once (numpy)
packing.py         a batch as micro-batches of rows of such trees
forward.py         log-probabilities of the trained tokens of a micro-batch
token_logprobs.py  log-softmax of chosen tokens, in chunks, with a gradient of its own
optimizer.py       AdamW or SGD, and the optimizer's state by name
model.py           model folders: read, written
trial.py           a trial at opening: the model's own log-probabilities are those of the trainer
policy.py          what is trained of a model: all of it
low_rank.py        low-rank matrices beside its linear layers (peft)
adapter.py         or such an adapter alone
critic.py          what return is to be expected, learned beside
learner.py         what lasts as long as a stage: optimizer, reference, critic, teacher; values and gradients by them
data_parallel.py   that learner on several ranks, which divide the micro-batches
snapshot.py        the weights of one version as explorers get them
saving.py          what lies in a checkpoint's `actor` folder
"""
