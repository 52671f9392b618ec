"""The daemon from a program: what the command line uses. In reading order:

address   where the daemon is
client    `Client`: one method for each thing that the API does
following an experiment over restarts of the daemon
replies   the parts of its answers that we read; lengths: one of them
errors    problem+json back to the errors of `rftd.ops.errors`
"""
