"""Training: the trainer process, for executing planned batches in spine order without any selection.

assembly         a plan, with the records it names, as a batch of arrays
run_steps        the steps of an experience as separate sequences
closed_groups    the groups of a plan, as input of advantage functions
group_samples    the experiences of a batch as samples with the advantages of their groups
recorded         the groups of recorded rollouts around the rows of a batch
history          the point of resumption: the newest good checkpoint, and why no newer one
tidying          files of earlier trainers: taken over, put back or removed
execution        planned batches on an engine, for every caller: training, recovery, forks, replays
saving           checkpoints: files first, then their event
publishing       weights for explorers: files first, then their event; old versions retired
extensions       third parties' parts of an experiment's training: origin, and presence here
environment      everything beside the log that may change the bits of the weights
inheritance      the first weights of a fork, from the history of the parent
training_traces  the spans of traced steps, publications and checkpoints
step_log         steps, publications and checkpoints as lines of the trainer's log
loop             the loop under the lease: resume (`_take_up`), train plans, publish weights, save checkpoints
trainer          the process: member, lease with its fence, engine
record           the log's account of the training: surviving executions of steps
rerun            planned batches executed again and compared; nothing is appended
replay           a whole history executed again: order, beginning and outcome
terms_file       the terms of a step's objective at each token, in a file
step_terms       a step executed again for such terms
"""
