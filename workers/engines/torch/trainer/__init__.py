"""The torch trainer engine: one device, or ranks with complete models on each; deterministic on a CPU.

In reading order:

engine.py          `TorchTrainerEngine`: opens a model, trains batches
definition.py      the engine as the registry has it
arguments.py       its `engine_args`
token_trees.py     which responses are computed together, and which of their tokens only once (numpy)
packing.py         a batch as micro-batches of rows of such trees
forward.py         log-probabilities of the trained tokens of a micro-batch
token_logprobs.py  log-softmax of chosen tokens, in chunks, with its own backward pass
passes.py          the backend of one model: passes over micro-batches, with and without a gradient
trial.py           a trial at opening: the trainer's log-probabilities against the model's own
policy.py          a policy with every weight under training
adapter.py         a policy with a low-rank adapter under training
stage_models.py    the backends of a stage's models
data_parallel.py   the stage's learner on several ranks, which divide the micro-batches
"""
