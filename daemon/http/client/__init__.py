"""The daemon's API from a program, as used by the command line. In reading order:

address   where the daemon is
client    `Client`, `AsyncClient`: runs, reads and commands; `follow`: an experiment over restarts of the daemon
run       `RunHandle`, `AsyncRunHandle`: one experiment, with its rows, waits and commands
steering  `SteeredRun`: the commands to an experiment, each also as a dry run
rows      `RowList`: typed rows, as pandas and polars take them
rollouts  rollouts and groups as text; tokens and points of series as rows
rollout_file  rollouts as a Parquet file
recomputing  ratio, KL and terms of the objective at each token, requested and waited for
submission  a file or a mapping, in the daemon's form
progress  an experiment's progress, in a cell, a terminal or a log
live_cell  a run in a notebook's cell, redrawn until the run ends
cards     a run, a group and a rollout as HTML
html      HTML escaped by construction, and curves as SVG
report    an experiment as a self-contained HTML page
local     `FolderDaemon`: the daemon of `Client.local` and `AsyncClient.local`
host      a program's private daemon, as a process
connection  reads and commands of one daemon as coroutines: repeated attempts, errors, address;
            the page kept by a follower, renewed by the parts of each event
downloads  the files of a checkpoint, range by range
transport requests over HTTP, blocking or on an event loop
driving   coroutines over a blocking transport as plain calls
answer    one answer, as JSON and typed
specification  the resolved experiment behind a name
judging   the recorded answers of an evaluation, scored by another reward
recorded_judging  recorded rollouts, scored by another reward
recorded_rows  rows of text from recorded experiences, for a later experiment
page_feed  pages read in a thread beside the displaying program; and the absence of a daemon
function_source  a function of a program as the text of a file
dry_run   a submission as judged by the daemon, or by this machine without one
pulling   fetches models and datasets missing in the daemon's cache of the Hugging Face hub
errors    problem+json back to the errors of `rftd.ops.errors`
"""
