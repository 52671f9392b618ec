"""The planner: the only writer of batch.planned and experience.retired (rule 1).

planner   what to plan and retire now, from the folded state and a clock reading
rows      the batches of a stage that trains on a dataset
"""
