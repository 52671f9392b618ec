"""The trainer engines: one file or folder for each.

definition  what a registered name leads to, and what an engine is made with
registry    the engines by name, and the making of one for an experiment
contract    the checks that every engine passes, to be run by its own tests
critic_arguments  the optimizer and the bounds of a critic, of every engine that has one
fake        weights that are a digest of what was trained
torch       one device or several ranks, deterministic on a CPU
verl        a model spread over the ranks of a process group, by verl's FSDP2
tinker      a service: weights and optimizer lie there
"""
