"""One file for each CLI verb, with its rendering; verbs of one family share one, as the table in `cli` says.

serve        the daemon
open         a browser, signed in by a one-time link
token        who may use the daemon: add, ls, rm, rotate
demo         a tiny model, trained in a minute
stack        a Kafka and a Postgres for development
submit       submit an experiment; fork: a new one from a step of another
run          an experiment from its file to its end, with a daemon for that time
sweep        experiments that differ in a few fields; sweeps: their list, their table, their end
ls           the experiments
get          one page about one experiment
watch        that page, live, until the experiment ends
steps        its training steps with all their figures
evals        its evaluations, their answers, two versions side by side
compare      several experiments: what their files differ in, and their figures
track        an experiment, written by a tracker: add
logs         log lines of its workers
tasks        tasks for a queue: add, end
events       its events
experiences  its experiences: list, one of them, priority, lengths
why          the wait of each role
lineage      the causes and effects of any one thing
dlq          dead letters: list, show, retry, drop
transitions  pause, resume, cancel; prioritize: which goes first
keeping      archive, restore, rm: the files of an experiment that has ended; gc: files that no event names
convert      checkpoints as folders that transformers loads
config       an experiment file, checked or printed
import_verl  a veRL run's settings, as an experiment file
sim          an experiment in virtual time
verify       a log, held against the rules
replay       an experiment's training, repeated from the log
rebuild      the state database from the log
backup       the daemon's folder, copied while it may run
export       an experiment into a file; import: out of one
explain      the meaning of an error code
doctor       this machine, its daemon and an experiment file, checked
installation  version, completion: this installation, named, completed by a shell
arguments    what several verbs are given: NAME, completed; options; one page of a list
worker       one worker process
"""
