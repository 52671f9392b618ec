"""Learning: how batches become gradients, apart from processes and engines. In reading order:

algorithms/        algorithms as data, and the advantages of groups
token_advantages/  how much better than expected each token was
losses/            objectives: the main term, divergences, entropy, and how they are aggregated
corrections/       what is done about tokens that older weights drew
stage/             one batch after the other of a stage, on any engine that gives values and gradients
nonfinite          batches that give no finite step: skipped, until there were too many in a row
engine             `TrainerEngine`: the seam
engine_definition  what a registered name leads to, and what an engine is made with
engine_registry    the engines by name, and the making of one for an experiment
critic_arguments   the optimizer and the bounds of a critic, of every engine that has one
memory_needs       the memory that training takes at least on a device, known before anything is loaded
"""
