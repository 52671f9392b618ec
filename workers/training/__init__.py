"""Training: the trainer process, which executes planned batches in spine order and selects nothing (rule 1).

assembly         a plan, with the records that it names, as a batch of arrays
run_steps        the steps of an experience as sequences of their own
run_samples      an experience as samples of a batch
closed_groups    the groups of a plan, as advantage functions see them
group_samples    the experiences of a batch with the advantages of their groups
recorded         the groups of recorded rollouts around the rows of a batch
history          where to take the history up: the newest good checkpoint
tidying          what trainers before this one left: taken from them, undone or removed
execution        planned batches on an engine, whoever asks
saving           checkpoints: files first, then their event
publishing       weights for explorers: files first, then their event; old ones retired
extensions       third parties' parts that an experiment trains with: whence, and whether they are here
environment      what the bits of the weights may depend on beside the log
inheritance      the weights that a fork begins with
training_traces  the spans of steps, publications and checkpoints, where they are traced
step_log         steps, publications and checkpoints as lines of the trainer's log
loop             the loop under the lease: history taken up, plans trained, weights published, checkpoints saved
trainer          the process: member, lease, engine
record           what the log says about the training: which executions survive
rerun            planned batches executed again and compared; nothing is appended
replay           a whole history executed again: what to do, what came of it
"""
