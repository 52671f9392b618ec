"""Queries of the CLI, the API and the page: typed rows, derived from the tables. In reading order:

rows          SQL rows converted to structs
counting      the batches and steps that count
books         which experiences count; the books
stage_counts  counts of a stage's rollouts by kind, reason and length
buffer        counts of waiting, cooling and open experiences
run_figures   figures of an experiment in a list, cached
experiments   lists of experiments, and one experiment in detail
live          state and signal of experiments that have not ended
last_event    the time of an experiment's newest event
shares        the owners of the steps in a fork's history
steps         steps, evaluations
eval_pages    pages of evaluations after a cursor
evaluations   one evaluation, and the log positions of its scores
signal        whether the newest batches have a learning signal
step_columns  figures of steps as columns, cached
thinning      a long series in a few buckets
marks         publications, checkpoints, transitions and lost workers
courses       the figures of one experiment by step, tokens or time, with its workers over time
trainer_time  the shares of the trainer's time between two steps
curve         the rewards of each step, cached
batches       batches, items, the lineage of a weight version
experiences   one by one
cursor        opaque keys of the next page of a list
experience_pages  lists by filter, in several orders
group_pages   closed groups, a task each, after a cursor
rollout_rows  the rollouts of a group, of a dataset row, of a step
timeline      rollouts in a span of time, each or sampled; plans of steps
spent         tokens counted against the budget of an experiment that is not running
lengths       lengths of responses, generated and trained: the drop bias
drops         rollouts that were not trained, by reason
failed_tasks  tasks with too few successful rollouts, and the attempted tasks of a queue
annotations  notes, stars and labels
weights       weight versions, checkpoints, workers
checkpoint_pages  checkpoints after a cursor, and the record of one
standing      current figures of all experiments except those ended long ago, for gauges
names         an experiment by its name, id or prefix
"""
