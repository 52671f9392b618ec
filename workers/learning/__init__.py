"""Learning: how batches become gradients, independent of processes and engines. In reading order:

algorithms/        algorithms as data, and the advantages of groups
token_advantages/  advantages of single tokens
losses/            objectives: the main term, divergences, entropy, and their aggregation
corrections/       the treatment of tokens drawn by older weights
stage/             the batches of a stage, on any engine with values and gradients
nonfinite          batches without a finite step: skipped, up to a number in a row
term_notes         the terms of the objective at each token, noted while a batch is trained
engine             `TrainerEngine`: the interface of trainer engines
engine_definition  a trainer engine's entry in the registry, and the arguments of its construction
engine_registry    the engines by name, and their construction for an experiment
critic_arguments   the optimizer and the bounds of a critic, of every engine with a critic
memory_needs       the memory needed for training on each device, known before loading
"""
