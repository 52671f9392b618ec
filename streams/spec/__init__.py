"""The specification of an experiment, section by section. In reading order:

declaration       marks of a declared field: unit, effect, kind of name
slow_rollouts     sections of `explorer` on slow rollouts
optimizer         section `algorithm.optimizer`, with its warm-up in steps
synchronizer      section `synchronizer`, shared by files and specifications
engine_needs      the needs of a rollout engine, the memory of workers, and the cluster
auxiliary         a model beside the trained one
reach             the addresses and keys allowed to an experiment, and the server of explorers
updates           the optimizer steps of a batch, and the correction for tokens of older weights
by_evaluation     decisions by the figures of evaluations
budgets           section `limits`: the spending of an experiment before a pause
row_format        section `format`, the contents of a row's keys
tracking          a tracker following an experiment's log
spec              a resolved experiment
explorer_devices  the GPUs of an explorer, engine by engine, and of all workers
schedule          the weights needed by an explore step, and the steps of publications and evaluations
row_order         the row at each position of the experiment: a pure function
stage_tasks       the tasks of a stage: the rows of its tasksets, one after another
naming            an experiment by its name or id
shared_fields     fields used by both halves, and their values if a half leaves them out
split_submission  experiments submitted as two halves
"""
