"""The torch trainer engine: one device, deterministic on a CPU.

In reading order:

engine.py          `TorchTrainerEngine`: the optimizer steps of a batch
updates.py         which samples each of them has: epochs and mini-batches
arguments.py       its `engine_args`
token_trees.py     which responses are computed together, and what of them is computed once (numpy)
packing.py         a batch as micro-batches of rows of such trees
forward.py         log-probabilities of the trained tokens of a micro-batch
batch_checks.py    what a batch must have to be trained at all
batch_pass.py      those of a whole batch before its first step, where an objective needs them
step_pass.py       masks that micro-batches of one optimizer step share: of tokens chosen among all of the step
mismatched.py      responses after prompts that they do not answer, and how far policy and reference are apart there
token_logprobs.py  log-softmax of chosen tokens, in chunks, with a gradient of its own
optimizer.py       AdamW or SGD, the learning rate of a step, the optimizer's state by name
memory.py          what a stage takes of the device's memory at least
model.py           model folders: read, written
trial.py           a trial at opening: the model's own log-probabilities are those of the trainer
policy.py          what is trained of a model: all of it
adapter.py         or a low-rank adapter beside it
critic.py          what return is to be expected, learned beside
stage.py           what lasts as long as a stage: objective, optimizer, reference, critic, teacher
saving.py          what lies in a checkpoint's `actor` folder
environment.py     what the bits of the weights may depend on
metrics.py         figures of a batch that need no model
"""
