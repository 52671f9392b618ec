"""The daemon from a program: what the command line uses. In reading order:

address   where the daemon is
client    `Client`: asks for what `rftd.daemon.http.views` declares; `follow`: an experiment over restarts of the daemon
moment    an experiment's page with what it waits for, and its pace
transcript  an experience as text, and the truth of its row
judging   the recorded answers of an evaluation by another reward
recorded_rows  rows of text of recorded experiences, for a later experiment
page_feed  its pages, read beside the program that shows them; and when no daemon answers
dry_run   a submission as the daemon judges it, or this machine where none answers
pulling   what the daemon's cache of the Hugging Face hub lacks, fetched beside it
errors    problem+json back to the errors of `rftd.ops.errors`
"""
