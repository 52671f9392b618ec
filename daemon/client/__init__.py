"""The daemon from a program: what the command line uses. In reading order:

address   where the daemon is
client    `Client`: asks for what `rftd.daemon.views` declares; `follow`: an experiment over restarts of the daemon
dry_run   a submission as the daemon judges it, or this machine where none answers
errors    problem+json back to the errors of `rftd.ops.errors`
"""
