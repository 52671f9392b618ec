"""One file for each CLI verb, with what it shows; verbs that do alike share one, as the table in `cli` says.

serve        the daemon
demo         a model that learns, here and now
stack        a Kafka and a Postgres for development
submit       hand in an experiment
fork         a new experiment out of another's history
ls           the experiments
get          one page about one
watch        the same, live
logs         lines of its workers
events       its history
experiences  what its rollouts left
why          what each role waits for
lineage      what a thing was made of, and what became of it
dlq          what was set aside, retry, drop
transitions  pause, resume, cancel; prioritize: which goes first
keeping      archive, restore, rm: files of an experiment into an archive, back, and away
gc           files that no event names
config       what an experiment file says
sim          an experiment in virtual time
verify       a log against the rules
replay       an experiment's training, once more
rebuild      the state database from the log
export       an experiment into a file
import_      and out of one
explain      what an error code means
installation  doctor, version, completion: is this machine fit to work, which release is this, a script for shells
names        the NAME argument, completed
worker       one worker process
"""
