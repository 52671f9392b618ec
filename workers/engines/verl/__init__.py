"""The verl trainer engine: the weights are spread over all ranks of a process group.

verl (https://github.com/verl-project/verl) wraps models by FSDP2 or opens them with Megatron's layers, moves them to
the host and back, and computes them with and without padding; objective, schedule, optimizer, checkpoints and what is
asked of a model are rftd's.

In reading order:

engine.py     `VerlTrainerEngine`: opens a model, trains batches, saves and loads, on every rank alike
definition.py the engine as the registry has it
arguments.py  its `engine_args`
platform.py   verl's idea of the hardware, chosen once in a process
cpu_platform.py  CPUs as such hardware
group.py      the ranks that train together, and what they tell one another
model.py      verl's engine around a model of ours
packing.py    a batch as micro-batches of whole texts (numpy)
passes.py     forward passes over the micro-batches of all ranks, with and without a gradient
shards.py     tensors of which each rank has a part
policy.py     what is trained of a model: all of it
adapter.py    or a low-rank adapter alone
optimizer.py  the optimizer of a stage, of which each rank steps a part
learner.py    what lasts as long as a stage: optimizer, reference, critic, teacher
critic.py     what return is to be expected, learned beside
megatron/     models of which each tensor is cut over some of the ranks, by Megatron's layers
saving.py     what lies in a checkpoint

Import nothing of verl before `platform.choose_platform`.
"""
