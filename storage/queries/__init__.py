"""What the CLI, the API and the page read: typed rows, derived from the tables. In reading order:

rows         from SQL rows to structs
counting     which batches and steps count
books        the state of every experience; the books
experiments  lists and one, whole
shares       whose steps a fork's history consists of
steps        steps, evaluations
curve        the rewards of each step, remembered
batches      batches, items, the lineage of a weight version
experiences  by step, reward, staleness
lengths      of responses, generated and trained: the drop bias
failed_tasks tasks of which too few rollouts succeeded
weights      weight versions, checkpoints, workers
"""
