"""The torch trainer engine: one device, or ranks that each hold everything; deterministic on a CPU.

In reading order:

engine.py          `TorchTrainerEngine`: opens a model, trains batches
definition.py      the engine as the registry has it
arguments.py       its `engine_args`
token_trees.py     which responses are computed together, and what of them is computed once (numpy)
packing.py         a batch as micro-batches of rows of such trees
forward.py         log-probabilities of the trained tokens of a micro-batch
token_logprobs.py  log-softmax of chosen tokens, in chunks, with a gradient of its own
passes.py          the backend of one model: passes over micro-batches, with and without a gradient
trial.py           a trial at opening: the model's own log-probabilities are those of the trainer
policy.py          the policy with every weight under training
adapter.py         the policy with a low-rank adapter under training
stage_models.py    the backends of a stage's models
data_parallel.py   the stage's learner on several ranks, which divide the micro-batches
"""
