"""The supervisor: which experiment runs, and its life from start to end. In reading order:

folder_claims  folders of experiments belonging to another log
loss_check   compares the log with every remembered head; a loss stops the affected experiments
intake       accepts submissions and forks, each with its own folder
submissions  submit and fork as orders, each effective once per key
reach        weights as files where explorers may run on other machines
relocation   the file of an imported experiment, with the paths moved by the import
forking      a fork's specification, and the allowed changes
continuing   a resubmitted file continues from the experiment ended in its folder
benching     mode bench: each checkpoint of an experiment, or the newest, as a fork that only evaluates
findings     every error of the checks, under the fields of the file
engine_packages  packages needed by engines, where workers run and where the daemon does
stage_steps  number of steps made by the rows of a stage
preflight    checks of models, rows, tasksets and digests, possible only in the daemon
sql_tables   tables of databases, read once into files kept for the experiment
agent_folders  folders of agents and environments, copied once
environment_tasks  rows of environments, read once into such files
data_sections  the tasksets and row buffers of a file
row_writer   one file of rows, named after its content
kept_tables  the kept files, and those no longer read by any experiment
hub_cache    models and datasets of the hub fetched by the daemon's user
row_looks    a look at the rows of a dataset
token_looks  a look for tokens without an embedding in the model, in a separate process
rounded_exports  folders for transformers rounded below the numbers of evaluations
memory_plan  the memory of workers against their devices, and micro-batches fitting into it: chosen once
contamination  held-out rows also used for training
task_columns  the columns of tasksets with drawn rows, and the conditions on a selector
parts        permissions and third-party parts needed when a run is taken up
disk_guard   pauses experiments before a disk is full
berth        one wanted worker, and its process
fleet        the worker processes of an experiment: start, adopt, notice the dead and the silent (worker.lost), restart
             with back-off, drain
worker_orders  the workers wanted by an experiment, with the arguments of each process
orders       idempotent commands: key, verb and body become one event, and the log gives the answer; verdicts
             on dead letters are orders too
inbox        the commands for an experiment under way, and those allowed in each state
task_pipelines  the rows of task pipelines, made once at submission in a process beside the daemon
queueing     the events adding tasks to a run, and the reasons for refusing tasks
snapshotter  snapshots of a run's fold
milestones   an experiment's milestones, as lines of the daemon's log
release      when a paused experiment releases its workers and its slot
decision_writer  appends decisions of planner, dispatcher and controller, and begins traces
run          one experiment under way: planner, dispatcher and controller on one fold
archiver     archive, restore, remove
archiving    archives experiments long after their end, by rule
payloads     drops token arrays not needed for further training
collector    deletes files of ended experiments without an event naming them
trackers     the processes following experiments for trackers
recomputing  the terms of a step's objective at each token, recomputed by a process beside no run
hosting      an experiment in a daemon starting its workers; workers of an experiment decided on by another daemon
runs         the experiments under way, several at once
sweeping     sweeps: submitted, and their runs begun one after the other; `asked_sweeps` has the commands
standing     reads answered from memory at once
foresight    the consequence of each command, in words and figures
rehearsals   commands carried out up to their first append
commands     the commands of one asker; implements `Operations`
supervisor   the queue, and all parts composed
"""
