"""The reads and commands of a daemon, one file for each noun, shared by API, client and CLI. In reading order:

route         `ReadRoute` and `CommandRoute`: a path, its parameters, its answer, and the function building the answer
wire          views as JSON and back
problem       the body of every error
moment        the present work of an experiment, its progress, pace and remaining time
experiments   the list, one line, the page; each role's wait
ended_pages   pages of ended experiments, kept in memory
sweeps        several experiments of one file: submit, cancel; the list, and the table of one
commands      submit, fork, pause, resume, cancel, prioritize, archive, restore, remove
drafts        a draft of an experiment file with changes, as YAML and checked
trials        a veRL script as a file, first rows and prompt, a tried rollout; all before a submission
history       steps, batches, evaluations; the origin of a thing, and its fate
comparison    several experiments at equal steps, tokens or time
differences   the fields that differ between the resolved files of several experiments
configuration the resolved experiment file, each field with its origin
annotations   notes, stars and labels on experiments and rollouts
series        figures of several experiments, thinned, with marks
timeline      what workers did between two moments: rollouts, steps, idle spans
evaluations   the answers of one evaluation, against another version's, of one row through all
experiences   by filter, one by one, their lengths; prioritize, give up
groups        closed groups, a task each
text          experiences as text: one, a group, a dataset row
tokens        the tokens of an experience in windows
words         answers with given words, of an experiment or of a step
drops         rollouts that were not trained, by reason, with lengths and examples
checkpoints   the checkpoints of an experiment, and their files
events        of an experiment, from the log: event_page is the answer, event_pages finds the events, event_json
logs          lines of the workers' log files, merged by time
refusals      refused requests sent as records in the log
dead_letters  records and tasks set aside; retry, drop
access        one-time links for browsers; the tokens, their limits and present use
hub           the daemon's cache of the Hugging Face hub
keeping       the rules for dropping payloads and archiving files
trackers      the progress of an experiment's trackers
budgets       amounts spent of each budget, and the pause for it
version       of the daemon
system        workers, streams and their lag, the machine and the checks

A new read needs its query in `rftd.storage.queries`, with the declared row; a function here, marked `read`; and a verb,
with its line in `rftd.daemon.cli.cli`. `rftd.daemon.http.api.routes` collects the reads of all files here; then
tests/golden/make_openapi.py, and the help in tests/golden/cli.
"""
