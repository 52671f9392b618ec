"""Resolvers turn the schema's models into complete stages; nothing here reads a disk or a network.

experiment.py  `resolve_experiment`: read this first
stages.py      global sections and the stage's own, laid over one another; settings that every stage shares
stage.py       one stage, complete
arguments.py   names and values of arguments that the schema leaves open
model.py       model, prompt and response lengths; the adapter that is trained instead of the model itself
tasksets.py    the tasks to explore, with workflow, reward, sampling and selector
bench.py       mode bench: held-out tasksets alone, and a service as the model
serving.py     mode serve: tasks are what clients ask, and when they ask it
rows.py        rows that are trained as they are: of a `train` stage, or an expert's beside the experiences
algorithm.py   the algorithm's own defaults, arguments by the names that Trinity-RFT has for them, the optimizer
correction.py  what is done about tokens that older weights drew
pacing.py      synchronizer to schedule and staleness bound; the modes colocate and collect_only
policy.py      policy, replay buffer and capacity to one staleness policy that can go on
gpu_shares.py  the GPUs of a cluster as the guide shares them, and which engine an auxiliary model has
rollout_engine.py which engine generates, and what it needs of its host
explorer.py    how rollouts are given out
tinker.py      a service as trainer and sampler
auxiliary.py   the models that workflows and rewards ask
placement.py   which GPUs each worker has for its own
ranks.py       the sizes by which a trainer's ranks share weights and sequences, and their nodes
verl.py        the guide's fields that verl has, also where older files have them
megatron.py    those of its strategy megatron: what acts, what is refused, what is not installed
monitor.py     the arguments of the guide's monitors, none of which is fed
idle_fields.py what is written and does nothing in its stage, by one table
by_evaluation.py what evaluations decide; figures that none will have
trainer.py     which engine trains, the critic or the teacher beside the model, the optimizer steps of a batch
"""
