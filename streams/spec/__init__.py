"""The specification of an experiment, section by section. In reading order:

declaration       marks of a declared field: unit, effect, kind of name
sections          sections of a file declared once: optimizer, format, synchronizer, limits, slow rollouts;
                  a field added there needs no change in `rftd.daemon.config`
engines           the needs of a rollout engine, auxiliary models, allowed addresses and keys
stage_parts       updates by a batch, decisions by evaluations, trackers
task_pipeline     operators on the rows of a taskset, and the record of the result
spec              a resolved experiment
explorer_devices  the GPUs of an explorer, engine by engine, and of all workers
schedule          the weights needed by an explore step, and the steps of publications and evaluations
stage_tasks       the tasks of a stage: the rows of its tasksets, one after another
naming            an experiment by its name or id
split_submission  experiments submitted as two halves
"""
