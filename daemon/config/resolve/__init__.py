"""Resolvers turn the schema's models into complete stages, without reading a disk or a network.

experiment.py         `resolve_experiment`: read this first
stages.py             the stage's sections merged over the global sections; settings common to all stages
stage.py              one stage, complete
arguments.py          names and values of arguments, open in the schema
model.py              model, prompt and response lengths; the adapter to train instead of the whole model
tasksets.py           the tasks to explore, with workflow, reward, sampling and selector
taskset_algorithm.py  an algorithm of a single taskset: the advantages of its groups
own_code.py           Python files of rewards, workflows, agents and losses, put into their stage
bench.py              mode bench: held-out tasksets only, and a service as the model
serving.py            mode serve: tasks are clients' requests, in order of arrival
rows.py               rows for training without rollouts: of a `train` stage, or expert rows mixed with experiences
algorithm.py          the algorithm's defaults, Trinity-RFT's names of arguments, the optimizer
correction.py         corrections for tokens sampled by older weights
pacing.py             synchronizer to schedule and staleness bound; the modes colocate and collect_only
policy.py             policy, replay buffer and capacity to one staleness policy without deadlock
gpu_shares.py         the guide's division of a cluster's GPUs, and the engine of an auxiliary model
rollout_engine.py     the generating engine, and requirements on the host
pipeline.py           operators on the experiences of finished tasks
juicer.py             the service Data-Juicer, used by both
task_pipeline.py      operators on rows, run at submission
explorer.py           leases of rollouts to explorers
tinker.py             a service as trainer and sampler
auxiliary.py          models called by workflows and rewards
placement.py          exclusive GPUs of each worker
ranks.py              the numbers of ranks sharing weights and sequences, and the trainer's nodes
verl.py               the guide's fields with a counterpart in verl, also at older paths
megatron.py           verl's strategy megatron: acting fields, refused fields, missing packages
web_addresses.py      http addresses written in the file
monitor.py            the arguments of the guide's monitors
ineffective_fields.py fields written without an effect in their stage, by one table
by_evaluation.py      decisions based on evaluations; figures unknown to every evaluation
trainer.py            the training engine, the critic or the teacher beside the model, the optimizer steps of a batch
"""
