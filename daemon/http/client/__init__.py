"""The daemon's API from a program, as used by the command line. In reading order:

address   where the daemon is
client    `Client`: requests the views of `rftd.daemon.http.views`; `follow`: an experiment over restarts of the daemon
moment    an experiment's page with its waits and its pace
specification  the resolved experiment behind a name
judging   the recorded answers of an evaluation, scored by another reward
recorded_rows  rows of text from recorded experiences, for a later experiment
page_feed  pages read in a thread beside the displaying program; and the absence of a daemon
dry_run   a submission as judged by the daemon, or by this machine without one
pulling   fetches models and datasets missing in the daemon's cache of the Hugging Face hub
errors    problem+json back to the errors of `rftd.ops.errors`
"""
