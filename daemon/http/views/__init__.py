"""The reads and commands of a daemon, one file for each noun, shared by API, client and CLI. In reading order:

route         `ReadRoute` and `CommandRoute`: a path, its parameters, its answer, and the function that makes it
wire          views as JSON and back
problem       the body of every error
experiments   the list, one line of it, the page; what each role waits for
sweeps        several experiments of one file: submit, cancel; the list, and the table of one
commands      submit, fork, pause, resume, cancel, prioritize, archive, restore, remove
history       steps, batches, evaluations; what a thing was made of, and what became of it
comparison    several experiments at equal steps, tokens or time
evaluations   the answers of one, against another version's, of one row through all
experiences   by filter, one by one, their lengths; prioritize, give up
events        of an experiment, from the log: event_page is what clients get, event_pages finds them, event_json
logs          lines of the workers' log files, merged by time
refusals      requests by records in the log that were refused
dead_letters  what was set aside; retry, drop
access        one-time links for browsers; the tokens, their limits and what is taken of them
hub           the cache of the Hugging Face hub that the daemon looks into
keeping       the rules by which payloads and files go
trackers      how far each of an experiment has come
budgets       what is spent of each, and when the experiment pauses for it
version       of the daemon

A new read is its query in `rftd.storage.queries`, which declares the row too; a function here, marked `read`; and a
verb, with its line in `rftd.daemon.cli.cli`. Route and document are made of the function.
"""
