"""The schema's models to complete stages; nothing here reads a disk or a network.

experiment.py  `resolve_experiment`: read this first
stages.py      global sections and the stage's own, laid over one another
stage.py       one stage, complete
notes.py       collects issues and warnings
arguments.py   names and values of arguments that the schema leaves open
plugin_arguments.py  arguments of a reward against what it declares
once.py        what a later stage cannot have otherwise than the first
lora.py        the adapter that is trained instead of the model itself
lengths.py     model, prompt and response lengths
tasksets.py    tasksets, datasets, workflows and rewards
algorithm.py   the algorithm's own defaults and the optimizer
upstream.py    arguments by the names that Trinity-RFT has for them
correction.py  what is done about tokens that older weights drew
pacing.py      synchronizer to schedule and staleness bound
mix.py         an expert's rows beside the experiences
policy.py      policy, replay buffer and capacity to one staleness policy
progress.py    whether that policy can go on at all
collecting.py  mode explore without anybody who trains
colocate.py    mode colocate: explorer and trainer take turns
companions.py  a critic or a teacher beside the model
updates.py     how many optimizer steps a batch gives
engines.py     which engines run it, and on what
scheduling.py  how rollouts are given out, and what is not waited for
"""
