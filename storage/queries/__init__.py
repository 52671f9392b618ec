"""Queries of the CLI, the API and the page: typed rows, derived from the tables. In reading order:

rows          SQL rows made structs
counting      the batches and steps that count
books         the state of every experience; the books
buffer        the experiences that wait, rest or are open, counted on from where the last count left off
experiments   lists and one, whole
last_event    the time of one's newest event
shares        the owners of the steps in a fork's history
steps         steps, evaluations
evaluations   one evaluation, and where in the log its scores lie
signal        whether the newest batches teach anything
curve         the rewards of each step, remembered
batches       batches, items, the lineage of a weight version
experiences   by step, reward, staleness
spent         the tokens that count for the budget of an experiment that is not under way
lengths       of responses, generated and trained: the drop bias
failed_tasks  tasks of which too few rollouts succeeded, and those of a queue that were tried
weights       weight versions, checkpoints, workers
standing      the present figures of all experiments that have not ended long ago, for gauges
names         an experiment by its name, id or prefix
"""
