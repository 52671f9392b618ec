"""The planner: the only writer of batch.planned and experience.retired (rule 1).

planner   what to plan and retire now, from the folded state and a clock reading
shelf     the pool of experiences in the order of the stage's policy, kept up to date with the ledger
judge     groups from which nothing can be learnt
rows      the batches of a stage that trains on a dataset
"""
