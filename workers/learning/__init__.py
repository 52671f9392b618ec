"""Learning: how batches become gradients, apart from processes and engines. In reading order:

algorithms/        algorithms as data, and the advantages of groups
token_advantages/  the advantage of each token over its expectation
losses/            objectives: the main term, divergences, entropy, and their aggregation
corrections/       the treatment of tokens drawn by older weights
stage/             the batches of a stage, on any engine with values and gradients
nonfinite          batches without a finite step: skipped, up to a number in a row
engine             `TrainerEngine`: the seam
engine_definition  the target of a registered name, and the arguments of an engine
engine_registry    the engines by name, and the construction for an experiment
critic_arguments   the optimizer and the bounds of a critic, of every engine with a critic
memory_needs       the least memory of training on a device, known before loading
"""
