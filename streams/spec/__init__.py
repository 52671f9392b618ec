"""The specification of an experiment, section by section. In reading order:

declaration       marks of a declared field: unit, effect, what it names
slow_rollouts     sections of `explorer` on slow rollouts
optimizer         section `algorithm.optimizer`, with its warm-up in steps
synchronizer      section `synchronizer`, as a file has it and a specification keeps it
engine_needs      what a rollout engine needs, the memory that workers take, and the cluster
auxiliary         a model beside the one that is trained
reach             which addresses and keys an experiment may use, and where explorers serve
updates           the optimizer steps that a batch gives, and how tokens of older weights are corrected for
by_evaluation     what the figures of evaluations decide
budgets           section `limits`: what an experiment may spend before it pauses
row_format        section `format`, what the keys of a row hold
tracking          a tracker that follows an experiment's log
spec              what an experiment is, resolved
explorer_devices  the GPUs of an explorer, engine by engine, and of all workers
schedule          which weights an explore step needs, when weights are published, when an evaluation is due
row_order         which row comes at which place of the experiment: a pure function
stage_tasks       the tasks of a stage: the rows of its tasksets, one after another
naming            which experiment a name or an id means
shared_fields     fields that two halves use alike, and what a half leaves out of them
split_submission  experiments that are handed in as two halves
"""
