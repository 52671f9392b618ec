"""A file for each CLI verb, with its rendering; related verbs share a file, according to the table in `cli`.

A new verb: one file here, one line in `rftd.daemon.cli.cli.VERBS`, and its help in tests/golden/cli.

serve        the daemon
open         a browser, signed in by a one-time link
page         the page in a browser: of the daemon, or of a recorded run
token        access to the daemon: add, ls, rm, rotate
demo         a tiny model, trained in a minute
stack        a Kafka and a Postgres for development
submit       submit an experiment; fork: a new experiment from a step of another
try_         one task by the model as it is, or recorded rollouts by another reward
run          an experiment from its file to its end, with a temporary daemon
sweep        experiments differing in a few fields; sweeps: list, table, cancel
ls           the experiments
get          a page about an experiment
watch        the page of an experiment, live, until the end
keys_view    a run by the keyboard: curves, groups and answers, for `watch --keys`
steps        training steps with all figures
evals        evaluations, answers, two versions side by side
timeline     work of the workers over time, and idle spans
checkpoints  checkpoints: list, download
compare      several experiments: differences of the files, and figures
track        an experiment, written by a tracker: add
logs         log lines of workers
tasks        tasks for a queue: list, add, end
events       events of an experiment
experiences  experiences: list, show, priority
untrained    experiences lengths, drops: what was not trained
answer_words  experiences find: answers with given words
rollout_file  experiences export: rollouts as a Parquet file
report       an experiment, a group or several experiments as one HTML file
why          the wait of each role
lineage      the causes and effects of a thing
dlq          dead letters: list, show, retry, drop
transitions  pause, resume, cancel; prioritize: which experiment goes first
note         a note, a star or labels on an experiment or a rollout
keeping      archive, restore, rm: the files of an ended experiment; gc: files not named by any event
convert      checkpoints as folders for transformers
config       an experiment file, checked or printed
import_verl  a veRL run's settings, as an experiment file
sim          an experiment in virtual time
verify       a log, checked against the rules
replay       an experiment's training, repeated from the log
rebuild      the state database from the log
backup       a copy of the daemon's folder, even of a running daemon
export       an experiment into a file; import: from a file into a log
explain      the meaning of an error code
doctor       checks of the machine, the daemon and an experiment file
installation  version, completion: the installed release, and completion in a shell
rehearsal    --dry-run of commands: the option, and the consequence
arguments    arguments of several verbs: NAME, completed; options; a page of a list
worker       a worker process
"""
