"""The verl trainer engine: the weights are spread over all ranks of a process group.

verl (https://github.com/verl-project/verl) wraps models by FSDP2 or opens them with Megatron's layers, moves them to
the host and back, and computes them with and without padding; objective, schedule, optimizer and checkpoints are
rftd's.

In reading order:

engine.py        `VerlTrainerEngine`: opens a model and trains batches, on every rank alike
definition.py    the engine as the registry has it
arguments.py     its `engine_args`
platform.py      verl's choice of hardware, made once in a process
cpu_platform.py  a CPU as hardware for verl
group.py         the ranks that train together, and their messages
wrapping.py      settings of wrapped models; verl's batches, and figures of logits
model.py         verl's FSDP engine, with changes
opened_model.py  a model opened by FSDP2 or Megatron
packing.py       a batch as micro-batches of complete texts (numpy)
passes.py        the backend of one model: passes over the micro-batches of all ranks, with and without a gradient
policy.py        a policy with every weight under training
adapter.py       a policy with a low-rank adapter under training
stage_models.py  the backends of a stage's models
megatron/        models with each tensor divided over some of the ranks, by Megatron's layers
saving.py        a model folder for transformers from weights spread over ranks

Import nothing of verl before `platform.choose_platform`.
"""
