"""The torch trainer engine: one device, or ranks with complete models on each; deterministic on a CPU.

In reading order:

engine.py          `TorchTrainerEngine`: opens a model, trains batches; the backends of a stage's models
definition.py      the engine as the registry has it
arguments.py       its `engine_args`
packing.py         a batch as trees of tokens computed once, and as micro-batches of their rows (numpy)
forward.py         log-probabilities of the trained tokens of a micro-batch
token_logprobs.py  log-softmax of chosen tokens, in chunks, with its own backward pass
passes.py          the backend of one model: passes over micro-batches, with and without a gradient
trial.py           a trial at opening: the trainer's log-probabilities against the model's own
policy.py          a policy with every weight under training
adapter.py         a policy with a low-rank adapter under training
data_parallel.py   the stage's learner on several ranks, which divide the micro-batches
"""
