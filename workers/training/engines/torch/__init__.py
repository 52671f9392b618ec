"""The torch trainer engine: one device, deterministic on a CPU.

In reading order:

engine.py          `TorchTrainerEngine`: opens a model, trains batches, saves and loads
arguments.py       its `engine_args`
opening.py         torch's switches, the device's memory at least, what the bits of the weights may depend on
updates.py         which samples each optimizer step of a batch has: epochs and mini-batches; checks of a batch
steps.py           the optimizer steps of a batch: gradients, clipping, masks chosen among all of a step
token_trees.py     which responses are computed together, and what of them is computed once (numpy)
packing.py         a batch as micro-batches of rows of such trees
forward.py         log-probabilities of the trained tokens of a micro-batch
batch_pass.py      those of a whole batch before its first step, where an objective needs them
mismatched.py      responses after prompts that they do not answer, and how far policy and reference are apart there
token_logprobs.py  log-softmax of chosen tokens, in chunks, with a gradient of its own
optimizer.py       AdamW or SGD, the learning rate of a step, the optimizer's state by name
model.py           model folders: read, written
trial.py           a trial at opening: the model's own log-probabilities are those of the trainer
policy.py          what is trained of a model: all of it
adapter.py         or a low-rank adapter beside it
critic.py          what return is to be expected, learned beside
stage.py           what lasts as long as a stage: objective, optimizer, reference, critic, teacher
snapshot.py        the weights of one version as explorers get them
saving.py          what lies in a checkpoint's `actor` folder
"""
