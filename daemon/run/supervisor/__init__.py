"""The supervisor: which experiment runs, and its life from start to end. In reading order:

folder_claims  folders of experiments that belong to another log
hearing      compares the log with everything that remembers it; a loss stops the experiments that it concerns
intake       accepts submissions and forks, each with a folder of its own
submissions  submit and fork as orders, each once for its key
reach        weights as files where explorers may be elsewhere
relocation   the file of an imported experiment, with the paths that the import moved
forking      a fork's specification, and the changes that are allowed
continuing   a file submitted again goes on from what ended in its folder
benching     mode bench of an experiment: each of its checkpoints, or the newest, as a fork that only evaluates
findings     everything that checks refuse, under the fields of the file
engine_packages  packages that engines need, where workers run and where the daemon does
stage_steps  how many steps the rows of a stage make
preflight    what only the daemon can know before it accepts: models, rows, tasksets, digests
sql_tables   tables of databases, read once into files that the experiment keeps
kept_tables  those files, and the ones that no experiment reads any more
hub_cache    models and datasets of the hub that the daemon's user has fetched
row_looks    a look at the rows of a dataset
token_looks  a look for tokens that the model has no embedding for, in a process of its own
memory_plan  the memory of workers against their devices, and micro-batches that fit: chosen once
contamination  held-out rows that are trained on as well
task_columns  the columns of tasksets whose rows are drawn, and what a selector must be
parts        permissions and parts of third parties that a run needs when it is taken up
disk_guard   pauses experiments before a disk is full
berth        one wanted worker, and the process that fills its place
fleet        the worker processes of an experiment: start, adopt, restart with back-off, drain
worker_orders  the workers that it wants, with what each is started with
orders       idempotent commands: key, verb and body become one event, and the log gives the answer; verdicts
             on dead letters are orders too
inbox        the commands for an experiment under way, and those that each state allows
queueing     the events that add tasks to a run, and why it may not take them
snapshotter  snapshots of a run's fold
milestones   what became of an experiment, as lines of the daemon's log
release      when a paused experiment lets go of its workers and its slot
decision_writer  appends what planner, dispatcher and controller decide, and begins traces
run          one experiment under way: planner, dispatcher and controller on one fold
keeper       archive, restore, remove
archiving    archives what ended long ago, by rule
payloads     drops the token arrays that nobody will train again
collector    deletes the files of ended experiments that no event refers to
trackers     the processes that follow experiments for trackers
hosting      an experiment as a daemon sees it that starts its workers; the workers that another daemon decides on
runs         the experiments under way, several at once
sweeping     sweeps: taken in, and their runs begun one after the other; `asked_sweeps` has the commands
standing     what is in memory of an experiment, told at once
commands     the commands of one asker; implements `Operations`
supervisor   the queue, and every part put together
"""
